//! Where credentials of a bucket come from: the default chain of the provider, each link against a service on loopback.
//!
//! The object store accepts any credentials, and a request is not sent without: so a probe that is fit has had them.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use objectserver::{Dialect, ObjectServer, ServerOptions};

use crate::lockd::support::Ran;

const EXPIRES: &str = "2099-01-01T00:00:00Z";

/// The services that a machine, a container and a cluster have: each request is noted, and has credentials as its response.
struct Services {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Services {
    fn start() -> Services {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&requests);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (mut buffer, mut head) = ([0; 4096], Vec::new());
                while !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
                    match stream.read(&mut buffer) {
                        Ok(read) if read > 0 => head.extend_from_slice(&buffer[..read]),
                        _ => break,
                    }
                }
                let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_string();
                let body = response(&line);
                noted.lock().expect("not poisoned").push(line);
                let length = body.len();
                let head =
                    format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
                let _ = stream.write_all((head + &body).as_bytes());
            }
        });
        Services { url, requests }
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().expect("not poisoned"))
    }
}

fn response(request: &str) -> String {
    let json = format!(
        r#"{{"Code":"Success","AccessKeyId":"id","SecretAccessKey":"secret","Token":"t","Expiration":"{EXPIRES}"}}"#
    );
    if request.contains("/latest/api/token") {
        return "session".into();
    }
    if request.contains("AssumeRoleWithWebIdentity") {
        return format!(
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>id</AccessKeyId>\
             <SecretAccessKey>secret</SecretAccessKey><SessionToken>t</SessionToken><Expiration>{EXPIRES}</Expiration>\
             </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        );
    }
    if request.contains("/security-credentials/ ") || request.contains("/security-credentials ") {
        return "role".into();
    }
    json
}

/// A short probe in an environment with these variables alone.
fn probe(url: &str, endpoint: &str, home: &Path, variables: &[(&str, &str)]) -> Ran {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lockd"));
    command.args(["store", "probe", url, "--short", "--s3-endpoint", endpoint, "--s3-region", "us-east-1"]);
    command.env_clear().env("HOME", home).envs(variables.iter().copied()).stdin(Stdio::null());
    let output = command.output().expect("it runs");
    Ran {
        code: output.status.code().expect("it was not killed"),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

#[test]
fn credentials_of_s3_come_from_variables_web_identity_container_and_machine() {
    let objects = ObjectServer::start(ServerOptions::new(Dialect::S3, "locks")).expect("a port on loopback");
    let (services, home) = (Services::start(), tempfile::tempdir().expect("a directory"));
    let token = home.path().join("token");
    std::fs::write(&token, "token of the cluster").expect("written");
    let token = token.to_str().expect("text");
    let pod = format!("{}/v1/credentials", services.url);
    let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret"), ("AWS_SESSION_TOKEN", "t")];
    let web = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/lockd"),
        ("AWS_ENDPOINT_URL_STS", services.url.as_str()),
    ];
    let container = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", pod.as_str()),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token),
    ];
    let machine = [("AWS_METADATA_ENDPOINT", services.url.as_str())];
    let links: [(&[(&str, &str)], &str); 4] = [
        (&keys, ""),
        (&web, "AssumeRoleWithWebIdentity"),
        (&container, "GET /v1/credentials"),
        (&machine, "GET /latest/meta-data/iam/security-credentials/role"),
    ];
    for (variables, expected) in links {
        let ran = probe("s3://locks/test", &objects.endpoint_by_name(), home.path(), variables);
        assert_eq!(ran.code, 0, "{expected}: {} {}", ran.stdout, ran.stderr);
        let requests = services.requests();
        let is_asked = requests.iter().any(|request| request.contains(expected));
        assert_eq!(is_asked, !expected.is_empty(), "{expected}: {requests:?}");
    }
}

#[test]
fn credentials_of_azure_come_from_variables() {
    let objects =
        ObjectServer::start(ServerOptions::new(Dialect::Azure, "locks")).expect("a port on loopback");
    let home = tempfile::tempdir().expect("a directory");
    let variables = [("AZURE_STORAGE_ACCOUNT_NAME", "account"), ("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")];
    let ran = probe("az://locks/test", &objects.endpoint_by_name(), home.path(), &variables);
    assert_eq!(ran.code, 0, "{} {}", ran.stdout, ran.stderr);
}
