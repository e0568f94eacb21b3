//! Which machine this is, for the reader of a table.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

/// Physical cores that this process may use: two hardware threads of one core count once.
pub fn cores() -> usize {
    let logical = std::thread::available_parallelism().map_or(1, usize::from);
    let siblings: BTreeSet<String> = (0..)
        .map_while(|cpu| {
            let folder = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
            fs::read_to_string(format!("{folder}/thread_siblings_list")).ok()
        })
        .collect();
    if siblings.is_empty() { logical } else { siblings.len().min(logical) }
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
    fn there_is_a_core() {
        assert!(cores() >= 1);
        assert!(describe().contains(" cores"));
    }
}
