//! The `.json` of an entry: what its data must be.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use super::{Label, now};

/// Bytes under one checksum. Files are written in such steps at multiples of it, for which a file
/// system that can keeps the pages of each together, and maps them as one huge page.
pub(super) const BLOCK: usize = 2 << 20;

/// Blocks that a sample has, beside the first and the last.
const SAMPLE: usize = 14;

/// How much of the data is compared with its checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// The first block, the last, and some between, others every time.
    Sample,
    Everything,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Seal {
    #[serde(flatten)]
    pub label: Label,
    pub bytes: u64,
    /// Seconds since 1970.
    pub created: u64,
    sums: Sums,
    /// The run of the system that wrote the data without waiting for the disk: its memory has
    /// them, the disk may not. `None` once the disk has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
}

/// The checksum (XXH3, 64 bits) of each [`BLOCK`], in order; 16 hexadecimal digits each on disk.
///
/// It notices what disks and crashes do. Against people who can write the cache it does not help,
/// but neither would a cryptographic hash that lies beside the data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Sums(Vec<u64>);

impl Sums {
    pub fn push(&mut self, block: &[u8]) {
        self.0.push(XxHash3_64::oneshot(block));
    }
}

impl From<Sums> for String {
    fn from(sums: Sums) -> Self {
        sums.0.iter().map(|sum| format!("{sum:016x}")).collect()
    }
}

impl TryFrom<String> for Sums {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (digits, rest) = text.as_bytes().as_chunks::<16>();
        let sum = |digits: &[u8; 16]| u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok();
        let sums = digits.iter().map(sum).collect::<Option<Vec<_>>>();
        sums.filter(|_| rest.is_empty()).map(Self).ok_or_else(|| "not 16 digits each".into())
    }
}

impl Seal {
    /// The seal of the `bytes` bytes that have been written to `data`.
    ///
    /// # Errors
    ///
    /// That of the disk, where there is no other way than to wait for it.
    pub fn new(label: Label, bytes: u64, sums: Sums, data: &File) -> io::Result<Self> {
        let boot = boot();
        if boot.is_none() {
            data.sync_data()?;
        }
        Ok(Self { label, bytes, created: now(), sums, boot })
    }

    /// Whether the data outlives the system's run, and so need not be read after every start.
    pub fn is_lasting(&self) -> bool {
        self.boot.is_none() || self.boot == boot()
    }

    /// The data has been verified after the run of the system that wrote them.
    pub fn make_lasting(&mut self) {
        self.boot = None;
    }

    /// Whether `data` is what was sealed, as far as it is looked at.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn fits(&self, mut data: &File, extent: Extent) -> io::Result<bool> {
        let blocks = self.sums.0.len();
        let expected = self.bytes.div_ceil(BLOCK as u64);
        if data.metadata()?.len() != self.bytes || expected != blocks as u64 {
            return Ok(false);
        }
        let picked: Vec<_> = match extent {
            Extent::Everything => (0..blocks).collect(),
            Extent::Sample => sample(blocks, SystemTime::now()),
        };
        let mut buffer = vec![0; BLOCK.min(self.bytes as usize)];
        for block in picked {
            let start = block as u64 * BLOCK as u64;
            let block_bytes = &mut buffer[..(self.bytes - start).min(BLOCK as u64) as usize];
            data.seek(SeekFrom::Start(start))?;
            data.read_exact(block_bytes)?;
            if XxHash3_64::oneshot(block_bytes) != self.sums.0[block] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Ascending: the first block, the last, and [`SAMPLE`] spread between them by the clock.
fn sample(blocks: usize, now: SystemTime) -> Vec<usize> {
    let last = blocks.saturating_sub(1);
    let offset = now.duration_since(UNIX_EPOCH).map_or(0, |time| time.subsec_nanos() as usize);
    let spread = (0..SAMPLE).map(|i| (offset + i * blocks) / SAMPLE % blocks.max(1));
    let mut picked: Vec<_> = [0, last].into_iter().chain(spread).collect();
    picked.sort_unstable();
    picked.dedup();
    picked
}

/// What tells this run of the system from all others; `None` where the system does not say.
fn boot() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sealed(bytes: usize) -> (tempfile::NamedTempFile, Seal) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let data: Vec<u8> = (0..bytes).map(|i| (i / 1000) as u8).collect();
        std::fs::write(file.path(), &data).unwrap();
        let mut sums = Sums::default();
        data.chunks(BLOCK).for_each(|block| sums.push(block));
        let seal = Seal::new(Label::default(), bytes as u64, sums, file.as_file()).unwrap();
        (file, seal)
    }

    fn flip(file: &tempfile::NamedTempFile, at: usize) {
        let mut data = std::fs::read(file.path()).unwrap();
        data[at] ^= 16;
        std::fs::write(file.path(), data).unwrap();
    }

    #[test]
    fn every_byte_counts() {
        let (file, seal) = sealed(2 * BLOCK + 77);
        let fits = |extent| seal.fits(&File::open(file.path()).unwrap(), extent).unwrap();
        assert!(fits(Extent::Everything) && fits(Extent::Sample));
        for at in [0, BLOCK - 1, BLOCK, 2 * BLOCK + 76] {
            flip(&file, at);
            assert!(!fits(Extent::Everything), "byte {at}");
            flip(&file, at);
        }
        assert!(fits(Extent::Everything));
        std::fs::write(file.path(), vec![0; 2 * BLOCK + 76]).unwrap();
        assert!(!fits(Extent::Sample), "shorter");
    }

    #[test]
    fn a_seal_reads_back_and_a_damaged_one_does_not() {
        let (file, seal) = sealed(BLOCK + 1);
        let text = serde_json::to_string(&seal).unwrap();
        let back: Seal = serde_json::from_str(&text).unwrap();
        assert_eq!((back.sums, back.bytes), (seal.sums.clone(), seal.bytes));
        let one: String = seal.sums.clone().into();
        let fewer = text.replace(&one, &one[..16]);
        let fewer: Seal = serde_json::from_str(&fewer).unwrap();
        assert!(!fewer.fits(file.as_file(), Extent::Sample).unwrap());
        for damaged in [&one[1..], &format!("{}g", &one[1..])] {
            assert!(serde_json::from_str::<Seal>(&text.replace(&one, damaged)).is_err());
        }
    }

    #[test]
    fn samples_have_both_ends_and_in_time_every_block() {
        assert_eq!(sample(1, UNIX_EPOCH), [0]);
        let mut seen = std::collections::BTreeSet::new();
        for nanos in 0..100 {
            let picked = sample(100, UNIX_EPOCH + Duration::from_nanos(nanos * 7));
            assert!(picked.is_sorted() && picked.first() == Some(&0) && picked.last() == Some(&99));
            assert!(picked.len() >= SAMPLE);
            seen.extend(picked);
        }
        assert_eq!(seen.len(), 100);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn data_of_an_earlier_run_of_the_system_last_once_they_are_verified() {
        let (_file, mut seal) = sealed(10);
        assert!(seal.is_lasting());
        seal.boot = Some("another".into());
        assert!(!seal.is_lasting());
        seal.make_lasting();
        assert!(seal.is_lasting());
    }
}
