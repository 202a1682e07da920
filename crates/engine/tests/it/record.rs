//! The record format: whatever is decided can be written and read back, and nothing else can be read.

use engine::record::Record;
use kernel::Outcome;
use sim::hostile::Hostile;
use sim::rng::Rng;
use sim::trial::Trial;

/// Records of the commands that random trials make up, applied or not.
fn records(seed: u64, count: u64) -> Vec<Record> {
    let (mut hostile, mut trial, mut rng) = (Hostile::new(seed), Trial::default(), Rng::new(seed));
    let mut records = Vec::new();
    for _ in 0..count {
        let step = hostile.step(&trial.kernel);
        let outcome: Outcome = trial.step(&step).expect("the kernel and the model agree");
        hostile.heard(&step, &outcome);
        let document = rng.one_in(5).then(|| vec![rng.small(255); usize::from(rng.small(100))]);
        let correlation = if rng.one_in(2) { 0 } else { u128::from(rng.number()) << 60 };
        records.push(Record { lsn: step.lsn, now: step.now, correlation, command: step.command, document });
    }
    records
}

/// Batches of more renewals than a command may have are refused by the kernel, and never written.
fn is_written(record: &Record) -> bool {
    !matches!(&record.command.action, kernel::Action::Renew(renewals) if renewals.len() > kernel::Action::MAX_BATCH)
}

#[test]
fn every_command_reads_back_as_it_was_written() {
    for seed in 0..20 {
        let written: Vec<Record> = records(seed, 500).into_iter().filter(is_written).collect();
        let mut batch = Vec::new();
        for record in &written {
            record.encode(&mut batch);
        }
        assert_eq!(Record::decode_all(&batch).expect("records"), written);
    }
}

#[test]
fn a_record_cut_short_at_any_byte_is_refused() {
    for record in records(3, 300).iter().filter(|record| is_written(record)) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        for cut in 0..bytes.len() {
            assert!(Record::decode(&bytes[..cut]).is_err(), "cut at {cut}: {record:?}");
        }
    }
}

/// A checksum stands before this in practice, but a decoder that panics is a way to take a server down.
#[test]
fn damaged_records_are_refused_or_read_as_others_and_never_panic() {
    let mut rng = Rng::new(11);
    let mut refused = 0;
    for record in records(4, 2000).iter().filter(|record| is_written(record)) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        for _ in 0..20 {
            let mut damaged = bytes.clone();
            let at = usize::try_from(rng.below(damaged.len() as u64)).expect("an index");
            damaged[at] ^= 1 << rng.small(8);
            match Record::decode(&damaged) {
                Err(_) => refused += 1,
                Ok((other, length)) => {
                    // Whatever reads is written again as the same bytes: there is one spelling.
                    let mut again = Vec::new();
                    other.encode(&mut again);
                    assert_eq!(again, damaged[..length]);
                }
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}
