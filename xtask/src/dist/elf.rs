//! Programs and libraries of Linux: what they need, and what of them nobody needs.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use object::LittleEndian;
use object::elf::{DT_RPATH, DT_RUNPATH, Dyn64, FileHeader64, PT_DYNAMIC, PT_LOAD, SHN_UNDEF};
use object::pod::{from_bytes_mut, slice_from_bytes_mut};
use object::read::elf::{FileHeader, ProgramHeader};

use super::GLIBC;

type Header = FileHeader64<LittleEndian>;

const LE: LittleEndian = LittleEndian;

/// The program or library at `path`; fails when it needs a newer glibc than packages may need.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let name = || path.display().to_string();
    let data = fs::read(path).with_context(name)?;
    let (needed, most) = (glibc(&data).with_context(name)?, GLIBC);
    let version = |it: (u32, u32)| format!("{}.{}", it.0, it.1);
    ensure!(
        needed <= most,
        "{} needs glibc {}, newer than {}",
        path.display(),
        version(needed),
        version(most)
    );
    Ok(data)
}

/// The newest version of glibc of which `data` needs a symbol.
fn glibc(data: &[u8]) -> Result<(u32, u32)> {
    let header = Header::parse(data)?;
    let sections = header.sections(LE, data)?;
    let mut newest = (0, 0);
    let Some((mut libraries, strings)) = sections.gnu_verneed(LE, data)? else { return Ok(newest) };
    let strings = sections.strings(LE, data, strings)?;
    while let Some((_, mut versions)) = libraries.next()? {
        while let Some(version) = versions.next()? {
            let name =
                strings.get(version.vna_name.get(LE)).map_err(|()| anyhow!("a lost name"))?;
            if let Some(version) = std::str::from_utf8(name)?.strip_prefix("GLIBC_") {
                let mut parts = version.split('.').map(str::parse::<u32>);
                if let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) {
                    newest = newest.max((major, minor));
                }
            }
        }
    }
    Ok(newest)
}

/// Cuts off what is not loaded: names of functions, and the table of sections.
pub fn strip(data: &mut Vec<u8>) -> Result<()> {
    let header = Header::parse(&data[..])?;
    let segments = header.program_headers(LE, &data[..])?.iter();
    let loaded = segments.filter(|it| it.p_type(LE) == PT_LOAD);
    let ends = loaded.map(|it| it.p_offset(LE) + it.p_filesz(LE));
    let end = ends.max().context("nothing of it is loaded")?;
    data.truncate(usize::try_from(end)?);
    let (header, _) = from_bytes_mut::<Header>(data).map_err(|()| anyhow!("too short"))?;
    header.e_shoff.set(LE, 0);
    header.e_shnum.set(LE, 0);
    header.e_shstrndx.set(LE, SHN_UNDEF);
    Ok(())
}

/// Has what a program's libraries need looked for where its own are: of `RUNPATH` only the program
/// hears, of the older `RPATH` its libraries too.
pub fn share_runpath(data: &mut [u8]) -> Result<()> {
    let header = Header::parse(&*data)?;
    let segments = header.program_headers(LE, &*data)?.iter();
    let dynamic = segments.clone().find(|it| it.p_type(LE) == PT_DYNAMIC);
    let dynamic = dynamic.context("it has no dynamic section")?;
    let (at, bytes) = (dynamic.p_offset(LE) as usize, dynamic.p_filesz(LE) as usize);
    let entries = data.get_mut(at..at + bytes).context("a dynamic section beyond its end")?;
    let count = bytes / size_of::<Dyn64<LittleEndian>>();
    let (entries, _) = slice_from_bytes_mut::<Dyn64<LittleEndian>>(entries, count)
        .map_err(|()| anyhow!("a damaged dynamic section"))?;
    let runpath = entries.iter_mut().find(|it| it.d_tag.get(LE) == DT_RUNPATH);
    runpath.context("it has no RUNPATH")?.d_tag.set(LE, DT_RPATH);
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_stripped_program_runs_and_has_no_sections() {
        // This one: it was linked here, and has symbols.
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let needed = glibc(&program).unwrap();
        assert!(((2, 2)..(3, 0)).contains(&needed), "{needed:?}");
        let mut stripped = program.clone();
        strip(&mut stripped).unwrap();
        assert!(stripped.len() < program.len());
        assert!(
            Header::parse(&stripped[..]).unwrap().sections(LE, &stripped[..]).unwrap().is_empty()
        );
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        std::fs::write(&path, &stripped).unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let output = Command::new(&path).arg("--list").output().unwrap();
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains("a_stripped_program_runs"));
    }

    #[test]
    fn a_runpath_becomes_an_rpath() {
        let dir = tempfile::tempdir().unwrap();
        let (source, program) = (dir.path().join("a.c"), dir.path().join("a"));
        std::fs::write(&source, "int main(void) { return 0; }").unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-Wl,--enable-new-dtags,-rpath,$ORIGIN", "-o"]).arg(&program).arg(&source);
        assert!(cc.status().unwrap().success());
        let before = std::fs::read(&program).unwrap();
        let mut after = before.clone();
        share_runpath(&mut after).unwrap();
        let changed: Vec<_> = before.iter().zip(&after).filter(|(a, b)| a != b).collect();
        assert_eq!(changed, [(&0x1d, &0x0f)]);
        assert!(share_runpath(&mut after).unwrap_err().to_string().contains("no RUNPATH"));
    }
}
