//! The location of a store in a bucket: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`.

use std::fmt;

/// A dialect of object stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Provider {
    /// Amazon S3, and stores that speak its protocol.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
}

impl Provider {
    /// All of them.
    pub const ALL: [Provider; 3] = [Provider::S3, Provider::Gcs, Provider::Azure];

    /// The scheme of its URLs.
    pub fn scheme(self) -> &'static str {
        match self {
            Provider::S3 => "s3",
            Provider::Gcs => "gs",
            Provider::Azure => "az",
        }
    }
}

/// The location of a store in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketUrl {
    /// The dialect.
    pub provider: Provider,
    /// The bucket, or the container of Azure.
    pub bucket: String,
    /// The part of every object name before the store's own: empty, or it ends with a slash.
    pub prefix: String,
}

impl BucketUrl {
    /// `None` if the text is not a URL of a bucket.
    pub fn parse(text: &str) -> Option<BucketUrl> {
        Provider::ALL.into_iter().find_map(|provider| {
            let rest = text.strip_prefix(provider.scheme())?.strip_prefix("://")?;
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            let prefix = prefix.trim_end_matches('/');
            (is_bucket(bucket) && is_prefix(prefix)).then(|| BucketUrl {
                provider,
                bucket: bucket.to_string(),
                prefix: if prefix.is_empty() { String::new() } else { format!("{prefix}/") },
            })
        })
    }
}

impl fmt::Display for BucketUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = self.prefix.trim_end_matches('/');
        write!(f, "{}://{}", self.provider.scheme(), self.bucket)?;
        if prefix.is_empty() { Ok(()) } else { write!(f, "/{prefix}") }
    }
}

fn is_bucket(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (1..=222).contains(&name.len()) && name.bytes().all(plain)
}

/// Names that every dialect takes as they are, without an encoding.
fn is_prefix(prefix: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/".contains(&byte);
    let parts = prefix.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    prefix.is_empty() || (parts && prefix.len() <= 500 && prefix.bytes().all(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_and_shown() {
        for (text, shown, prefix) in [
            ("s3://locks", "s3://locks", ""),
            ("s3://locks/", "s3://locks", ""),
            ("s3://locks/prod/eu", "s3://locks/prod/eu", "prod/eu/"),
            ("gs://locks/prod/", "gs://locks/prod", "prod/"),
            ("az://container/a", "az://container/a", "a/"),
        ] {
            let url = BucketUrl::parse(text).expect(text);
            assert_eq!((url.to_string().as_str(), url.prefix.as_str()), (shown, prefix));
            assert_eq!(BucketUrl::parse(shown), Some(url));
        }
        for bad in [
            "",
            "s3:",
            "s3://",
            "s3:///x",
            "http://a",
            "s3://a b",
            "s3://a//b",
            "s3://a/../b",
            "s3://a/ä",
            "S3://a",
        ] {
            assert_eq!(BucketUrl::parse(bad), None, "{bad}");
        }
    }
}
