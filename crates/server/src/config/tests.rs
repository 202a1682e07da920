//! Tests of the table of settings and of the checks of a configuration.

use super::*;
use crate::settings::Syntax;

fn refused(change: impl FnOnce(&mut Config)) -> &'static str {
    let mut config = Config::in_directory("/tmp/anywhere");
    change(&mut config);
    config.check().expect_err("invalid").setting
}

#[test]
fn defaults_are_valid_and_each_invalid_setting_is_named() {
    assert_eq!(Config::in_directory("/tmp/anywhere").check(), Ok(()));
    assert_eq!(Config::in_memory().check(), Ok(()));
    assert_eq!(refused(|config| config.default_ttl = Duration::ZERO), "default-ttl");
    assert_eq!(refused(|config| config.default_ttl = Duration::from_secs(301)), "default-ttl");
    assert_eq!(refused(|config| config.max_ttl = Duration::MAX), "max-ttl");
    assert_eq!(refused(|config| config.sweeper_interval = Duration::MAX), "sweeper-interval");
    assert_eq!(refused(|config| config.shards = 0), "shards");
    assert_eq!(refused(|config| config.json_max = 0), "json-max");
    assert_eq!(refused(|config| config.inline_max = 1 << 20), "inline-max");
    assert_eq!(refused(|config| config.max_connections = 0), "max-connections");
    assert_eq!(refused(|config| config.max_leases_per_identity = 0), "max-leases-per-identity");
    assert_eq!(refused(|config| config.listen = "nowhere".into()), "listen");
    assert_eq!(refused(|config| config.listen = ":port".into()), "listen");
}

#[test]
fn without_mtls_only_loopback_is_allowed_unless_insecure_listen_is_set() {
    let everywhere = "0.0.0.0:9341".to_string();
    let mut config = Config { mtls: false, listen: everywhere.clone(), ..Config::in_memory() };
    assert_eq!(config.check().expect_err("insecure").setting, "listen");
    config.insecure_listen = true;
    assert_eq!(config.check(), Ok(()));
    let bare = |mtls| Config { mtls, listen: ":7".into(), ..Config::in_memory() }.address();
    assert_eq!(bare(false).expect("sound").ip(), Ipv4Addr::LOCALHOST);
    assert!(bare(true).expect("sound").ip().is_unspecified());
    assert_eq!(Config { mtls: true, listen: everywhere, ..Config::in_memory() }.check(), Ok(()));
}

#[test]
fn the_data_directory_is_left_alone_if_nothing_is_kept_in_it() {
    let with =
        |data_dir: &str, store, mtls| Config { store, mtls, ..Config::in_directory(data_dir) }.keeps_data();
    let disk = |path: &str| StoreUrl::disk(path);
    assert!(with("/data", disk("/data/store"), true));
    assert!(with("/data", disk("/data/own/deep"), false));
    assert!(with("/data", disk("/elsewhere"), true), "identities are");
    assert!(with("/data", disk("/data"), true));
    assert!(!with("/data", disk("/elsewhere"), false));
    assert!(!with("/data", StoreUrl::memory(), false));
    assert!(!with("", disk("/elsewhere"), false));
}

const MS: Duration = Duration::from_millis(1);
/// The longest span that the kernel takes: 2^32 - 1 ms, 49.7 days.
const SPAN_MAX: Duration = Duration::from_millis(kernel::Limits::SPAN_MAX.0);

type Field<T> = fn(&mut Config) -> &mut T;

/// Every duration, with its shortest and longest value.
fn durations() -> [(&'static str, Field<Duration>, Duration, Duration); 9] {
    [
        ("default-ttl", |config| &mut config.default_ttl, MS, SPAN_MAX),
        ("max-ttl", |config| &mut config.max_ttl, MS, SPAN_MAX),
        ("acquire-block", |config| &mut config.acquire_block, Duration::ZERO, SPAN_MAX),
        (
            "sweeper-interval",
            |config| &mut config.sweeper_interval,
            Duration::ZERO,
            Duration::from_secs(3600),
        ),
        ("gc-temps-interval", |config| &mut config.gc_temps_interval, MS, SPAN_MAX),
        ("history-window", |config| &mut config.history_window, Duration::ZERO, SPAN_MAX),
        ("head-timeout", |config| &mut config.head_timeout, MS, SPAN_MAX),
        ("stall-timeout", |config| &mut config.stall_timeout, MS, SPAN_MAX),
        ("drain-timeout", |config| &mut config.drain_timeout, Duration::ZERO, SPAN_MAX),
    ]
}

/// The usual settings, but that any TTL goes with any other.
fn changed(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config { default_ttl: MS, max_ttl: SPAN_MAX, ..Config::in_memory() };
    change(&mut config);
    if config.max_ttl < SPAN_MAX {
        config.default_ttl = config.max_ttl;
    }
    config
}

/// `--history-window 60d` passed the check; the kernel, whose spans are shorter, panicked at the first record.
#[test]
fn every_duration_is_served_at_its_ends_and_refused_one_beyond() {
    for (name, field, min, max) in durations() {
        for good in [min, max] {
            let config = changed(|config| *field(config) = good);
            assert_eq!(config.check(), Ok(()), "{name} {good:?}");
            assert!(crate::Server::new(config).is_ok(), "{name} {good:?}");
        }
        let below = min.checked_sub(Duration::from_nanos(1));
        for bad in [Some(max + MS), Some(Duration::MAX), below].into_iter().flatten() {
            let mut config = changed(|_| {});
            *field(&mut config) = bad;
            let error = config.check().expect_err(name);
            assert_eq!(error.setting, name, "{bad:?}: {error}");
            assert!(error.to_string().contains("from "), "its range is named: {error}");
        }
    }
}

#[test]
fn every_size_and_count_is_served_at_its_ends_and_refused_one_beyond() {
    type Set = fn(&mut Config, u64);
    let settings: [(&str, Set, u64, u64); 6] = [
        ("json-max", |config, value| config.json_max = value, 1, i64::MAX as u64),
        ("inline-max", |config, value| config.inline_max = value, 0, engine::document::INLINE_MAX as u64),
        ("shards", |config, value| config.shards = u32::try_from(value).expect("32 bits"), 1, 1024),
        (
            "history-max",
            |config, value| config.history_max = u32::try_from(value).expect("32 bits"),
            0,
            u32::MAX.into(),
        ),
        (
            "max-leases-per-identity",
            |config, value| config.max_leases_per_identity = u32::try_from(value).expect("32 bits"),
            1,
            u32::MAX.into(),
        ),
        (
            "max-connections",
            |config, value| config.max_connections = usize::try_from(value).expect("64 bits"),
            1,
            1_000_000,
        ),
    ];
    for (name, set, min, max) in settings {
        for good in [min, max] {
            let config = changed(|config| set(config, good));
            assert_eq!(config.check(), Ok(()), "{name} {good}");
            // 1024 engines are too many threads for a test.
            assert!(name == "shards" || crate::Server::new(config).is_ok(), "{name} {good}");
        }
        let fits = |value: &u64| *value <= u32::MAX.into() || name == "json-max";
        for bad in [min.checked_sub(1), Some(max + 1).filter(fits)].into_iter().flatten() {
            let error = changed(|config| set(config, bad)).check().expect_err(name);
            assert_eq!(error.setting, name, "{bad}: {error}");
            assert!(error.to_string().contains("from "), "its range is named: {error}");
        }
    }
}

#[test]
fn names_variables_and_help_follow_their_rules() {
    for setting in Config::SETTINGS {
        let variable = format!("LOCKD_{}", setting.name.replace('-', "_").to_uppercase());
        assert_eq!(setting.variable, variable);
        assert!(!setting.help.ends_with('.') && !setting.help.contains('\n'), "{}", setting.help);
        let is_quantity = matches!(setting.syntax, Syntax::Duration | Syntax::Size | Syntax::Count);
        assert_eq!(setting.range.is_some(), is_quantity, "{}", setting.name);
    }
}

#[test]
fn every_default_is_a_value_that_can_be_set_and_changes_nothing() {
    let usual = Config::in_directory("/data");
    let mut config = usual.clone();
    for setting in Config::SETTINGS {
        if let Some(text) = setting.value_text(&usual) {
            setting.set(&mut config, OsStr::new(&text)).expect(setting.name);
        }
    }
    assert_eq!(config, usual);
}

/// Each setting of a bucket reaches the client of the object store, set as a flag, a variable or a line of the settings file,
/// which all go through [`Config::SETTINGS`], or as a field.
#[test]
fn settings_of_a_bucket_are_options_of_its_client() {
    use bucket::{BucketOptions, Encryption};
    let mut by_text = Config::in_memory();
    for (name, text) in [
        ("s3-region", "eu-north-1"),
        ("s3-endpoint", "http://127.0.0.1:9"),
        ("s3-sse", "aws:kms"),
        ("s3-kms-key-id", "key-1"),
        ("s3-max-part-size", "8MiB"),
        ("s3-multipart-threshold", "16MiB"),
        ("s3-timeout", "7s"),
        ("s3-credential-process", "echo"),
        ("s3-ca-file", "/etc/ca.pem"),
    ] {
        let setting = Config::SETTINGS.iter().find(|setting| setting.name == name).expect(name);
        setting.set(&mut by_text, OsStr::new(text)).expect(name);
    }
    let by_field = Config {
        s3_region: Some("eu-north-1".into()),
        s3_endpoint: Some("http://127.0.0.1:9".into()),
        s3_sse: BucketEncryption::Kms,
        s3_kms_key_id: Some("key-1".into()),
        s3_max_part_size: 8 << 20,
        s3_multipart_threshold: 16 << 20,
        s3_timeout: Duration::from_secs(7),
        s3_credential_process: Some("echo".into()),
        s3_ca_file: Some("/etc/ca.pem".into()),
        ..Config::in_memory()
    };
    assert_eq!(by_text, by_field);
    let expected = BucketOptions {
        region: Some("eu-north-1".into()),
        endpoint: Some("http://127.0.0.1:9".into()),
        encryption: Encryption::Kms(Some("key-1".into())),
        part_bytes: 8 << 20,
        multipart_threshold: 16 << 20,
        timeout: Duration::from_secs(7),
        credential_process: Some("echo".into()),
        ca_file: Some("/etc/ca.pem".into()),
        ..BucketOptions::default()
    };
    assert_eq!(by_field.open_options().bucket, expected);
    let with = |s3_sse| Config { s3_sse, ..Config::in_memory() }.open_options().bucket.encryption;
    assert_eq!(with(BucketEncryption::Aes256), Encryption::Aes256);
    assert_eq!(with(BucketEncryption::Bucket), Encryption::Bucket);
}
