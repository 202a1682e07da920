//! Contents of identity files, and refusals of malformed ones.

use identity::{
    Algorithm, CaBundle, Certificate, ClientBundle, Denylist, NamespaceRights, Purpose, Right, Rights, Role,
    ServerBundle, TrustAnchors,
};
use rcgen::{ExtendedKeyUsagePurpose as Usage, IsCa};

use crate::support::{DAY, ISSUED_AT, Project, at, name, pem_of, section, sections};

#[test]
fn every_kind_of_file_round_trips() {
    for algorithm in [Algorithm::P256, Algorithm::Ed25519] {
        let project = Project::with(1, algorithm);
        let ca = CaBundle::parse(&project.ca_pem()).expect("a CA's file");
        assert_eq!(ca.certificate(), project.authority.certificate());

        let denylist = Denylist::parse("0a\n0b").expect("serials");
        let server = project.server().with_denylist(denylist.clone()).with_ca_key(ca.key().clone());
        let read = ServerBundle::parse(&server.to_pem()).expect("a server's file");
        assert_eq!(read.to_pem(), server.to_pem());
        assert_eq!((read.denylist(), read.ca_key().is_some()), (&denylist, true));

        let client = project.client("worker-1");
        let read = ClientBundle::parse(&client.to_pem()).expect("a client's file");
        assert_eq!(read.to_pem(), client.to_pem());
        assert_eq!(read.identity(), client.identity());
    }
}

#[test]
fn a_server_file_has_no_ca_key_by_default() {
    let project = Project::new(2);
    let server = project.server();
    let ca_key = section(&project.ca_pem(), "PRIVATE KEY");
    assert!(server.ca_key().is_none());
    assert!(!server.to_pem().contains(pem_of("PRIVATE KEY", &ca_key).as_str()));
    assert_eq!(server.to_pem().matches("PRIVATE KEY-----\n").count(), 4, "two keys, begun and ended");
}

#[test]
fn a_server_has_one_certificate_for_each_side() {
    let server = Project::new(3).server();
    let forwarding = server.forwarding().expect("made with one");
    let purposes = [server.server(), forwarding].map(|keyed| keyed.certificate().purpose());
    assert_eq!(purposes, [Purpose::Server, Purpose::Client]);
    assert_eq!(server.server().certificate().hosts(), ["*", "localhost", "127.0.0.1"]);
    assert_ne!(server.server().certificate().serial(), forwarding.certificate().serial());
}

#[test]
fn a_client_carries_its_name_role_and_rights() {
    let project = Project::new(4);
    let usual = project.client("worker-1").identity().clone();
    assert_eq!((usual.name.as_str(), usual.role), ("worker-1", Role::Worker));
    assert_eq!(usual.rights, Rights::client_default());
    assert_eq!(usual.serial.as_bytes().len(), 16);
    assert_eq!(usual.not_after, at(ISSUED_AT + 365 * DAY));

    let listed = ["orders/ä:rwm", "*:p"].map(|text| text.parse::<NamespaceRights>().expect(text));
    let rights = Rights::new(listed).expect("few");
    let kind = (Algorithm::P256, "7".parse().expect("days"));
    let who = (Role::Operator, &rights);
    let other = project.issue(|moment| project.authority.issue_client(&name("Ada Ä"), who, kind, moment));
    let other = other.expect("a client").identity().clone();
    assert_eq!((other.name.as_str(), other.role), ("Ada Ä", Role::Operator));
    assert!(
        other.rights.allows("orders/ä", Right::ManualHold) && other.rights.allows("x", Right::PublicRead)
    );
    assert_eq!(other.not_after, at(ISSUED_AT + 7 * DAY));
}

#[test]
fn nothing_outlives_its_ca() {
    let project = Project::new(5);
    let kind = (Algorithm::P256, "36500".parse().expect("days"));
    let who = (Role::Worker, &Rights::client_default());
    let client = project.issue(|moment| project.authority.issue_client(&name("x"), who, kind, moment));
    let until = client.expect("a client").identity().not_after;
    assert_eq!(until, project.authority.certificate().not_after());

    let late = project.issue(|moment| {
        moment.now = at(ISSUED_AT + 3651 * DAY);
        project.authority.issue_client(&name("x"), who, kind, moment)
    });
    assert!(late.expect_err("the CA is gone").to_string().contains("the CA has expired"));
}

#[test]
fn sections_may_be_in_any_order_with_comments_between_them() {
    let project = Project::new(6);
    let mut found = sections(&project.server().to_pem());
    found.reverse();
    let text = found.join("# a comment\n\n").replace('\n', "\r\n");
    ServerBundle::parse(&text).expect("the same file");
}

#[test]
fn an_incomplete_file_is_refused_with_the_reason() {
    let (project, other) = (Project::new(7), Project::new(8));
    let [own, key, ca] = sections(&project.client("a").to_pem()).try_into().expect("three sections");
    let [strange, strange_key, _] = sections(&project.client("b").to_pem()).try_into().expect("three");
    let whole = format!("{ca}{own}{key}");
    let server = project.server().to_pem();
    let cut = whole.trim_end().strip_suffix("-----END PRIVATE KEY-----").expect("its end").to_string();
    let table = [
        (String::new(), "no identity file"),
        ("hello\n".into(), "no identity file"),
        (cut, "cut short"),
        (whole.replacen("MI", "!!", 1), "broken PEM"),
        (format!("{own}{key}"), "no CA certificate"),
        (format!("{ca}{key}"), "no client certificate"),
        (format!("{ca}{own}"), "no private key in the file"),
        (format!("{ca}{own}{strange_key}"), "no private key in the file"),
        (format!("{ca}{strange}{key}"), "no private key in the file"),
        (format!("{whole}{key}"), "does not belong into a client's file"),
        (format!("{whole}{strange_key}"), "does not belong into a client's file"),
        (format!("{whole}{strange}"), "more than one client certificate"),
        (format!("{}{own}{key}", other.ca_certificate()), "not issued by this CA"),
        (whole.clone() + &pem_of("LOCKD DENYLIST", b"zz\n"), "serial=zz line=1"),
        (whole.clone() + &pem_of("ENCRYPTED PRIVATE KEY", b"x"), "label=ENCRYPTED PRIVATE KEY"),
        (whole.clone() + &pem_of("PRIVATE KEY", b"x"), "a private key cannot be used"),
        (whole.clone() + &pem_of("CERTIFICATE", b"x"), "not a certificate"),
        (server.to_string(), "does not belong into a client's file"),
        (project.ca_pem().to_string(), "no client certificate"),
    ];
    for (number, (text, what)) in table.iter().enumerate() {
        let error = ClientBundle::parse(text).expect_err(what).to_string();
        assert!(error.contains(what), "{number}: {error}");
        assert!(!error.ends_with('.') && !error.contains('\n'), "{error}");
    }
    ClientBundle::parse(&whole).expect("the whole one");
}

#[test]
fn an_incomplete_server_file_is_refused_with_the_reason() {
    let (project, other) = (Project::new(9), Project::new(10));
    let found = sections(&project.server().to_pem());
    let [ca, own, key, forward, forward_key] = &found[..] else { panic!("five sections") };
    let client = sections(&project.client("a").to_pem())[..2].concat();
    let table = [
        (format!("{own}{key}{forward}{forward_key}"), "no CA certificate"),
        (format!("{ca}{forward}{forward_key}"), "no server certificate"),
        (format!("{ca}{own}{key}"), "no certificate for forwarding"),
        (format!("{ca}{own}{forward}{forward_key}"), "no private key in the file"),
        (format!("{ca}{own}{key}{client}"), "does not carry the role server"),
        (found.concat() + &client, "more than one certificate for forwarding"),
        (format!("{}{own}{key}{forward}{forward_key}", other.ca_certificate()), "not issued by this CA"),
        (found.concat() + &pem_of("LOCKD DENYLIST", b"0a\nzz\n"), "serial=zz line=2"),
        (found.concat() + &pem_of("LOCKD DENYLIST", b"\xff"), "the denylist is no text"),
        (found.concat() + &sections(&other.ca_pem())[1], "a private key that does not belong"),
        (project.client("a").to_pem().to_string(), "no server certificate"),
    ];
    for (text, what) in table {
        let error = ServerBundle::parse(&text).expect_err(what).to_string();
        assert!(error.contains(what), "{error}");
    }
    let bare = CaBundle::parse(&project.ca_certificate()).expect_err("no key").to_string();
    assert!(bare.contains("the CA's private key is not in the file"), "{bare}");
}

#[test]
fn a_certificate_has_one_purpose() {
    let project = Project::new(11);
    let table: [(Vec<Usage>, Result<Purpose, &str>); 5] = [
        (vec![Usage::ServerAuth], Ok(Purpose::Server)),
        (vec![Usage::ClientAuth], Ok(Purpose::Client)),
        (vec![], Err("for nothing")),
        (vec![Usage::ServerAuth, Usage::ClientAuth], Err("for both sides")),
        (vec![Usage::Any], Err("for both sides")),
    ];
    for (usages, expected) in table {
        let text = project.irregular(|params| params.extended_key_usages.clone_from(&usages));
        let found = Certificate::parse(&section(&text, "CERTIFICATE"));
        match expected {
            Ok(purpose) => assert_eq!(found.expect("one purpose").purpose(), purpose),
            Err(what) => assert!(found.expect_err(what).to_string().contains(what), "{usages:?}"),
        }
    }
    let text = project.irregular(|params| {
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
    });
    let error = Certificate::parse(&section(&text, "CERTIFICATE")).expect_err("cannot sign");
    assert!(error.to_string().contains("does not let it sign"), "{error}");
}

#[test]
fn a_certificate_has_one_name() {
    let project = Project::new(12);
    let none = |params: &mut rcgen::CertificateParams| {
        params.extended_key_usages = vec![Usage::ClientAuth];
        params.distinguished_name = rcgen::DistinguishedName::new();
    };
    let error = Certificate::parse(&section(&project.irregular(none), "CERTIFICATE")).expect_err("no name");
    assert!(error.to_string().contains("must have one common name"), "{error}");
    for bad in ["", "a\nb", "a\u{0}", &"x".repeat(65)] {
        assert!(bad.parse::<identity::Name>().is_err(), "{bad:?}");
    }
    for good in ["x", &"ä".repeat(64), "worker-1", "a b"] {
        assert!(good.parse::<identity::Name>().is_ok(), "{good:?}");
    }
}

#[test]
fn check_reports_dates_and_revocations() {
    let project = Project::new(13);
    let (server, client) = (project.server(), project.client("a"));
    let none = Denylist::default();
    assert_eq!(server.check(&none, at(ISSUED_AT)), [""; 0]);
    assert_eq!(server.check_client(&client, &none, at(ISSUED_AT)), [""; 0]);
    assert_eq!(server.check(&none, at(ISSUED_AT + 365 * DAY)), [""; 0], "to the last second");

    let late = server.check(&none, at(ISSUED_AT + 365 * DAY + 1));
    assert!(late.len() == 2 && late[0].contains("has expired"), "{late:?}");
    let early = server.check_client(&client, &none, at(ISSUED_AT - DAY));
    assert!(early.iter().any(|what| what.contains("not valid yet; check the clock")), "{early:?}");
    let old = server.check(&none, at(ISSUED_AT + 3651 * DAY));
    assert!(old[0].contains("the CA certificate has expired"), "{old:?}");

    let serial = client.identity().serial;
    let listed: Denylist = [serial].into_iter().collect();
    let expected = format!("the certificate is revoked: serial={serial}");
    assert_eq!(server.check_client(&client, &listed, at(ISSUED_AT)), [expected.as_str()]);
    assert_eq!(server.with_denylist(listed).check_client(&client, &none, at(ISSUED_AT)), [expected.as_str()]);
}

#[test]
fn a_client_of_another_ca_is_reported() {
    let (project, other) = (Project::new(14), Project::new(15));
    let found = project.server().check_client(&other.client("a"), &Denylist::default(), at(ISSUED_AT));
    assert!(found[0].contains("not issued by this CA"), "{found:?}");
    assert!(found[1].contains("another CA"), "{found:?}");
}

#[test]
fn debug_output_hides_secrets() {
    let project = Project::new(16);
    let shown = format!("{:?} {:?} {:?}", project.server(), project.client("a"), project.authority);
    assert!(shown.contains("PrivateKey(..)"), "{shown}");
    assert!(shown.len() < 2000, "no bytes: {shown}");
}

#[test]
fn a_renewed_identity_differs_only_in_serial_key_and_dates() {
    for algorithm in [Algorithm::P256, Algorithm::Ed25519] {
        let project = Project::with(40, algorithm);
        let (server, client) = (project.server(), project.client("worker-1"));
        let revoked: Denylist = ["0a".parse().expect("a serial")].into_iter().collect();
        let (server, client) = (server.with_denylist(revoked.clone()), client.with_denylist(revoked));
        let next =
            project.issue(|moment| project.authority.renew_client(&client, None, moment)).expect("renewed");
        let [old, new] = [&client, &next].map(|bundle| bundle.client().certificate());
        assert_ne!(old.serial(), new.serial());
        assert_eq!(
            (old.name(), old.algorithm(), old.not_after()),
            (new.name(), new.algorithm(), new.not_after())
        );
        assert_eq!(
            (client.identity().role, &client.identity().rights),
            (next.identity().role, &next.identity().rights)
        );
        assert_eq!((client.anchors(), client.denylist()), (next.anchors(), next.denylist()));

        let next =
            project.issue(|moment| project.authority.renew_server(&server, None, moment)).expect("renewed");
        let [old, new] = [&server, &next].map(|bundle| bundle.server().certificate());
        assert_ne!(old.serial(), new.serial());
        assert_eq!((old.name(), old.hosts(), old.not_after()), (new.name(), new.hosts(), new.not_after()));
        assert_eq!((server.anchors(), server.denylist()), (next.anchors(), next.denylist()));
        let days = "7".parse().expect("days");
        let short = project.issue(|moment| project.authority.renew_server(&server, Some(days), moment));
        let end = short.expect("renewed").server().certificate().not_after();
        assert_eq!(end.as_secs(), ISSUED_AT + 7 * DAY);
    }
}

#[test]
fn a_file_with_two_cas_is_read_back_whatever_their_order() {
    let (one, other) = (Project::new(41), Project::new(42));
    let both =
        |anchors: &TrustAnchors| anchors.clone().with(other.authority.certificate().clone()).expect("two");
    let client = one.client("a");
    let client = client.clone().with_anchors(both(client.anchors())).expect("its own CA is there");
    let found = sections(&client.to_pem());
    let reversed: String = found.iter().rev().map(String::as_str).collect();
    for text in [client.to_pem().to_string(), reversed] {
        let read = ClientBundle::parse(&text).expect("its own text");
        assert_eq!(read.anchors(), client.anchors(), "the issuer is first");
    }
    let server = one.server();
    let server = server.clone().with_anchors(both(server.anchors())).expect("its own CA is there");
    assert_eq!(ServerBundle::parse(&server.to_pem()).expect("its own text").anchors(), server.anchors());
    let own = one.authority.certificate().serial();
    let error = server.anchors().clone().without(own).expect_err("its own CA").to_string();
    assert!(error.contains("lockd auth renew"), "{error}");
    let only =
        server.anchors().clone().without(other.authority.certificate().serial()).expect("the other one");
    assert_eq!(&only, one.server().anchors());
}
