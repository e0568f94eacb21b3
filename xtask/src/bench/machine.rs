//! Which machine this is, for the reader of a table.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

/// Physical cores that this process may use: two hardware threads of one core count once.
pub fn cores() -> usize {
    let logical = std::thread::available_parallelism().map_or(1, usize::from);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let siblings = |cpu: usize| {
        let folder = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
        fs::read_to_string(format!("{folder}/thread_siblings_list")).ok()
    };
    cores_of(&allowed(&status), siblings, logical)
}

/// CPUs that a process may run on, by its `/proc/self/status`; none where it does not say.
fn allowed(status: &str) -> Vec<usize> {
    let ranges = field(status, "Cpus_allowed_list").unwrap_or_default().split(',');
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    ranges.filter_map(range).flatten().collect()
}

/// Cores of `allowed` CPUs, of which `siblings` names those of one core; at most `logical`, which knows
/// of quotas too.
fn cores_of(
    allowed: &[usize],
    siblings: impl Fn(usize) -> Option<String>,
    logical: usize,
) -> usize {
    let cores: BTreeSet<String> = allowed.iter().filter_map(|&cpu| siblings(cpu)).collect();
    if cores.is_empty() { logical } else { cores.len().min(logical) }
}

/// What this CPU can, as Linux names it; nothing elsewhere.
pub fn flags() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = field(&cpus, "flags").or_else(|| field(&cpus, "Features"));
    flags.unwrap_or_default().to_owned()
}

/// One line: processor, cores, memory, system.
pub fn describe() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor(&cpus);
    let vectors = vector_extensions(field(&cpus, "flags").unwrap_or_default());
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = field(&memory, "MemTotal").and_then(|it| it.strip_suffix(" kB")?.parse().ok());
    let memory = memory.map_or_else(String::new, |kibibytes: f64| {
        format!(", {:.0} GB of memory", kibibytes * 1024.0 / 1e9)
    });
    let system = Command::new("uname").arg("-sr").output().map_or_else(
        |_| std::env::consts::OS.to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    );
    format!("{processor}{vectors}, {} cores{memory}, {system}", cores())
}

/// Its name, and the numbers that tell its generation where a cloud leaves that out of the name:
/// "AMD EPYC, family 25 model 17".
fn processor(cpus: &str) -> String {
    let name = field(cpus, "model name").unwrap_or(std::env::consts::ARCH);
    match (field(cpus, "cpu family"), field(cpus, "model")) {
        (Some(family), Some(model)) => format!("{name}, family {family} model {model}"),
        _ => name.to_owned(),
    }
}

/// Today, "2025-01-31".
pub fn today() -> String {
    let output = Command::new("date").args(["-u", "+%Y-%m-%d"]).output();
    output.map_or_else(
        |_| "an unknown day".into(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

/// The value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// The widest vectors and what speeds up narrow numbers: " (AVX-512, VNNI)".
fn vector_extensions(flags: &str) -> String {
    const KNOWN: [(&str, &str); 6] = [
        ("avx512f", "AVX-512"),
        ("avx2", "AVX2"),
        ("avx512_vnni", "VNNI"),
        ("avx_vnni", "VNNI"),
        ("avx512_bf16", "BF16"),
        ("amx_tile", "AMX"),
    ];
    let flags: BTreeSet<&str> = flags.split_whitespace().collect();
    let mut names: Vec<&str> = Vec::new();
    for (flag, name) in KNOWN {
        let narrower = name == "AVX2" && names.contains(&"AVX-512");
        if flags.contains(flag) && !names.contains(&name) && !narrower {
            names.push(name);
        }
    }
    if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_flags() {
        let text = "processor\t: 0\nmodel name\t: Some CPU: v2\nflags : fpu avx2\n";
        assert_eq!(field(text, "model name"), Some("Some CPU: v2"));
        assert_eq!(field(text, "name"), None);
        assert_eq!(processor(text), "Some CPU: v2");
        let text = format!("{text}cpu family\t: 25\nmodel\t\t: 17\n");
        assert_eq!(processor(&text), "Some CPU: v2, family 25 model 17");
        assert_eq!(vector_extensions("fpu avx2 fma"), " (AVX2)");
        assert_eq!(vector_extensions("avx2 avx512f avx512_vnni avx_vnni"), " (AVX-512, VNNI)");
        assert_eq!(vector_extensions("fpu"), "");
    }

    #[test]
    fn only_cores_that_a_process_may_use_count() {
        assert_eq!(allowed("Name:\tx\nCpus_allowed_list:\t0-2,5\n"), [0, 1, 2, 5]);
        assert!(allowed("Name:\tx\n").is_empty());
        // Four cores of two threads each.
        let siblings = |cpu: usize| (cpu < 8).then(|| format!("{}-{}", cpu & !1, cpu | 1));
        assert_eq!(cores_of(&[0, 1, 2, 3, 4, 5, 6, 7], siblings, 8), 4);
        assert_eq!(cores_of(&[0, 1], siblings, 2), 1);
        assert_eq!(cores_of(&[2, 4], siblings, 2), 2);
        assert_eq!(cores_of(&[0, 2, 4, 6], siblings, 2), 2);
        assert_eq!(cores_of(&[], siblings, 8), 8);
    }

    #[test]
    fn there_is_a_core() {
        assert!(cores() >= 1);
        assert!(describe().contains(" cores"));
    }
}
