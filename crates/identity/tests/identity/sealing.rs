//! Encryption of the CA's key by a passphrase.

use identity::{Authority, CaBundle, CaKey, ErrorKind};

use crate::support::{CHEAP, Project, passphrase, pem_of, section};

const LABEL: &str = "LOCKD ENCRYPTED CA KEY";

fn sealed(project: &Project) -> String {
    let right = passphrase("right");
    let bundle = project.issue(|moment| project.authority.to_bundle(Some((&right, CHEAP)), moment));
    bundle.expect("a CA's file").to_pem().to_string()
}

fn open(text: &str, word: Option<&str>) -> Result<Authority, ErrorKind> {
    let bundle = CaBundle::parse(text).map_err(|error| error.kind())?;
    let word = word.map(passphrase);
    Authority::open(bundle.certificate(), bundle.key(), word.as_ref()).map_err(|error| error.kind())
}

#[test]
fn the_right_passphrase_opens_and_no_other() {
    let project = Project::new(1);
    let text = sealed(&project);
    assert!(!text.contains("BEGIN PRIVATE KEY"), "{text}");
    assert!(matches!(CaBundle::parse(&text).expect("a CA's file").key(), CaKey::Sealed(_)));

    let authority = open(&text, Some("right")).expect("it opens");
    assert_eq!(authority.certificate(), project.authority.certificate());
    for wrong in ["Right", "right ", "wrong", "r"] {
        assert_eq!(open(&text, Some(wrong)).expect_err("refused"), ErrorKind::PassphraseWrong);
    }
    assert_eq!(open(&text, None).expect_err("refused"), ErrorKind::PassphraseNeeded);
}

#[test]
fn a_key_in_clear_opens_with_no_passphrase() {
    let project = Project::new(2);
    open(&project.ca_pem(), None).expect("it opens");
}

#[test]
fn every_flipped_bit_is_refused() {
    let project = Project::new(3);
    let text = sealed(&project);
    let bytes = section(&text, LABEL);
    for bit in 0..bytes.len() * 8 {
        // Flips there may need up to 1 GiB before they are refused: one in eight suffices.
        if (12 * 8..24 * 8).contains(&bit) && bit % 8 != 0 {
            continue;
        }
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let changed = project.ca_certificate() + &pem_of(LABEL, &changed);
        let refused = open(&changed, Some("right")).expect_err("a changed bit");
        assert!(matches!(refused, ErrorKind::Invalid | ErrorKind::PassphraseWrong), "bit={bit}");
    }
}

#[test]
fn a_truncated_or_extended_sealed_key_is_refused() {
    let project = Project::new(4);
    let bytes = section(&sealed(&project), LABEL);
    let longer = [&bytes[..], b"x"].concat();
    for bytes in [&bytes[..0], &bytes[..8], &bytes[..64], &bytes[..80], &bytes[..bytes.len() - 1], &longer] {
        let text = project.ca_certificate() + &pem_of(LABEL, bytes);
        open(&text, Some("right")).expect_err("wrong length");
    }
}

#[test]
fn a_file_cannot_demand_unbounded_memory_or_time() {
    let project = Project::new(5);
    let bytes = section(&sealed(&project), LABEL);
    for (at, number) in [(12, u32::MAX), (12, 1024 * 1024 + 1), (16, 17), (20, 17), (16, 0), (20, 0), (12, 0)]
    {
        let mut changed = bytes.clone();
        changed[at..at + 4].copy_from_slice(&number.to_le_bytes());
        let text = project.ca_certificate() + &pem_of(LABEL, &changed);
        let error = CaBundle::parse(&text).expect_err("too much").to_string();
        assert!(error.contains("more memory or time"), "{at} {number}: {error}");
    }
}

#[test]
fn another_version_is_named() {
    let project = Project::new(6);
    let mut bytes = section(&sealed(&project), LABEL);
    bytes[8] = 2;
    let text = project.ca_certificate() + &pem_of(LABEL, &bytes);
    let error = CaBundle::parse(&text).expect_err("a later version").to_string();
    assert!(error.contains("version=2"), "{error}");
}

#[test]
fn the_key_of_another_ca_is_refused_once_it_is_open() {
    let (project, other) = (Project::new(7), Project::new(8));
    let text = project.ca_certificate() + &pem_of(LABEL, &section(&sealed(&other), LABEL));
    assert_eq!(open(&text, Some("right")).expect_err("not its key"), ErrorKind::Invalid);
}

#[test]
fn both_forms_of_the_key_in_one_file_are_refused() {
    let project = Project::new(9);
    let text = project.ca_pem().to_string() + &pem_of(LABEL, &section(&sealed(&project), LABEL));
    let error = CaBundle::parse(&text).expect_err("twice").to_string();
    assert!(error.contains("twice"), "{error}");
}

/// Golden bytes: old files must stay readable.
#[test]
fn a_file_of_the_first_version_opens() {
    let text = include_str!("golden/ca-v1.pem");
    let bundle = CaBundle::parse(text).expect("a CA's file");
    let authority =
        Authority::open(bundle.certificate(), bundle.key(), Some(&passphrase("golden"))).expect("it opens");
    assert_eq!(authority.certificate().name().as_str(), "golden CA");
}
