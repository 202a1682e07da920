//! The record format: every decided command can be encoded and decoded, and malformed bytes are refused.

use engine::internals::record::Record;
use engine::internals::record::{BatchContents, decode_batch};
use kernel::{ClockReading, Outcome, Shard, Span};
use sim::generator::CommandGenerator;
use sim::rng::Rng;
use sim::trial::Trial;

/// Records of random commands, applied or not.
fn records(seed: u64, count: u64) -> Vec<Record> {
    let (mut generator, mut trial, mut rng) = (CommandGenerator::new(seed), Trial::default(), Rng::new(seed));
    let mut records = Vec::new();
    for _ in 0..count {
        let step = generator.step(&trial.kernel);
        let outcome: Outcome = trial.step(&step).expect("the kernel and the model agree");
        generator.observe(&step, &outcome);
        let document = rng.one_in(5).then(|| vec![rng.small(255); usize::from(rng.small(100))]);
        let correlation = if rng.one_in(2) { 0 } else { u128::from(rng.number()) << 60 };
        records.push(Record { lsn: step.lsn, now: step.now, correlation, command: step.command, document });
    }
    records
}

/// The kernel refuses commands with too many renewals, so they are never logged.
fn is_logged(record: &Record) -> bool {
    !matches!(&record.command.action, kernel::Action::Renew(renewals) if renewals.len() > kernel::Action::MAX_BATCH)
}

#[test]
fn every_command_decodes_as_it_was_encoded() {
    for seed in 0..20 {
        let written: Vec<Record> = records(seed, 500).into_iter().filter(is_logged).collect();
        let clocks = ClockReading { boot: u128::MAX - u128::from(seed), boot_clock: Span(seed), unix_ms: 5 };
        let batch = Record::encode_batch(clocks, &written);
        let contents = decode_batch(&batch, Shard(0)).expect("records");
        assert_eq!(contents, BatchContents { clocks: Some(clocks), records: written });
    }
}

#[test]
fn a_record_cut_short_at_any_byte_is_refused() {
    for record in records(3, 300).iter().filter(|record| is_logged(record)) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        for cut in 0..bytes.len() {
            assert!(Record::decode(&bytes[..cut]).is_err(), "cut at {cut}: {record:?}");
        }
    }
}

/// In practice a checksum protects the decoder, but a decoder that panics would be a way to take a server
/// down.
#[test]
fn damaged_records_are_refused_or_canonical_and_never_panic() {
    let mut rng = Rng::new(11);
    let mut refused = 0;
    for record in records(4, 2000).iter().filter(|record| is_logged(record)) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        for _ in 0..20 {
            let mut damaged = bytes.clone();
            let at = usize::try_from(rng.below(damaged.len() as u64)).expect("an index");
            damaged[at] ^= 1 << rng.small(8);
            match Record::decode(&damaged) {
                Err(_) => refused += 1,
                Ok((other, length)) => {
                    // A record that decodes is canonical: it is encoded as the same bytes.
                    let mut again = Vec::new();
                    other.encode(&mut again);
                    assert_eq!(again, damaged[..length]);
                }
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}

/// A later build wrote the log: this one says so, and reads nothing of it.
#[test]
fn a_batch_of_an_unknown_format_is_refused_with_its_version() {
    let mut batch = Record::encode_batch(ClockReading::default(), &records(1, 3));
    batch[3] = 3;
    let error = decode_batch(&batch, Shard(0)).expect_err("unknown").to_string();
    assert_eq!(error, "batch format not supported by this build: version=3: offset=4");
    batch[3] = 2;
    batch[0] = b'x';
    assert!(decode_batch(&batch, Shard(0)).expect_err("no magic").to_string().starts_with("not a batch"));
    assert!(decode_batch(&batch[..20], Shard(0)).is_err(), "cut short");
}
