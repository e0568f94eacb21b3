//! `cargo xtask dist --check`: installs each package on bare systems and runs it there, and builds everything
//! once more, elsewhere.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{Packages, Release, make, roots, scratch, tree, tree_of};
use crate::{flags, workspace};

/// What the model in the packages is given to go on with, and how many tokens it adds.
const PROMPT: &str = "The little fox";
const TOKENS: &str = "32";
/// A model with tokens that transformers chose, among the fixtures of `xla-session`.
const FIXTURE: &str = "llama-mha-f32";

/// Installs and runs `packages` on each system that `flags` name.
pub fn installs(packages: &Packages, folder: &Path, flags: &flags::Dist) -> Result<()> {
    for suite in &flags.suite {
        let debian = roots::debian(folder, suite)?;
        // Below the roots, so that copying takes no bytes where the file system can share them.
        let scratch = tempfile::Builder::new().prefix(".try-").tempdir_in(folder.join("roots"))?;
        let scratch = scratch.path();
        let story = archive(packages, &debian, &scratch.join("archive"), suite)?;
        let same = |what: &str, other: String| {
            ensure!(other == story, "{what} on {suite} tells {other:?}, and the archive {story:?}");
            Ok(())
        };
        same("the runtime's archive", runtime(packages, &debian, scratch, suite)?)?;
        same("the Debian package", deb(packages, &debian, &scratch.join("deb"), suite)?)?;
        same("the wheel", wheel(packages, &debian, &scratch.join("wheel"), suite)?)?;
    }
    Ok(())
}

/// Where glibc, its shell and nothing else are, in a folder with a space in its name.
fn archive(packages: &Packages, debian: &Path, root: &Path, suite: &str) -> Result<String> {
    eprintln!("==> the archive, with the glibc of {suite} and /bin/sh");
    roots::bare(debian, root, true)?;
    let program = unpack(&packages.archive, root, "some where")?;
    Place { root, program }.proven()
}

/// Where there is not even a shell, with what the whole archive has compiled.
fn runtime(packages: &Packages, debian: &Path, scratch: &Path, suite: &str) -> Result<String> {
    eprintln!("==> the archive without a compiler, with the glibc of {suite} alone");
    let whole = scratch.join("archive");
    let compiled = Place { root: &whole, program: unpack(&packages.archive, &whole, "again")? };
    compiled.run(&["compile", "-m", "tiny-tales", "--target", "cpu", "--cache-dir", "/graphs"])?;

    let root = scratch.join("runtime");
    roots::bare(debian, &root, false)?;
    let place = Place { root: &root, program: unpack(&packages.runtime, &root, "elsewhere")? };
    let said = place.fails(&place.generate())?;
    ensure!(said.contains("iree-llm fetch compiler"), "without graphs it says {said:?}");
    fs::create_dir(root.join("graphs"))?;
    for entry in fs::read_dir(whole.join("graphs"))? {
        let entry = entry?;
        fs::copy(entry.path(), root.join("graphs").join(entry.file_name()))?;
    }
    let mut generate = place.generate();
    generate.extend(["--cache-dir", "/graphs"]);
    let story = place.run(&generate)?;
    ensure!(place.serves(&["--cache-dir", "/graphs"])? == story, "serve answers something else");
    Ok(story)
}

/// On a Debian, by its package manager.
fn deb(packages: &Packages, debian: &Path, root: &Path, suite: &str) -> Result<String> {
    eprintln!("==> the Debian package, on {suite}");
    roots::copy(debian, root)?;
    let name = packages.deb.file_name().context("a package has a name")?;
    fs::copy(&packages.deb, root.join("tmp").join(name))?;
    let file = format!("/tmp/{}", name.to_string_lossy());
    workspace::run(roots::command(root, "dpkg").arg("--install").arg(&file))?;
    let story = Place { root, program: "iree-llm".into() }.proven()?;
    workspace::run(roots::command(root, "dpkg").args(["--remove", "iree-llm"]))?;
    for left in ["usr/bin/iree-llm", "usr/lib/iree-llm", "usr/share/iree-llm"] {
        ensure!(!root.join(left).exists(), "{left} is left when the package is removed");
    }
    Ok(story)
}

/// On a Debian, by pip, in a virtual environment.
fn wheel(packages: &Packages, debian: &Path, root: &Path, suite: &str) -> Result<String> {
    eprintln!("==> the wheel, on {suite}");
    roots::copy(debian, root)?;
    let name = packages.wheel.file_name().context("a wheel has a name")?;
    fs::copy(&packages.wheel, root.join("tmp").join(name))?;
    let file = format!("/tmp/{}", name.to_string_lossy());
    workspace::run(roots::command(root, "python3").args(["-m", "venv", "/env"]))?;
    let mut pip = roots::command(root, "/env/bin/pip");
    workspace::run(pip.args(["install", "--no-index", "--quiet"]).arg(&file))?;
    Place { root, program: "/env/bin/iree-llm".into() }.proven()
}

/// Unpacks an archive below the root into the folder `name`; returns the program as the root sees it.
fn unpack(archive: &Path, root: &Path, name: &str) -> Result<String> {
    let folder = root.join(name);
    fs::create_dir_all(&folder)?;
    workspace::run(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&folder))?;
    let top = fs::read_dir(&folder)?.next().context("the archive is empty")??.file_name();
    Ok(format!("/{name}/{}/bin/iree-llm", top.to_string_lossy()))
}

/// An installed program.
struct Place<'a> {
    root: &'a Path,
    /// Its path there, or its name.
    program: String,
}

impl Place<'_> {
    fn generate(&self) -> Vec<&'static str> {
        vec!["generate", "-m", "tiny-tales", "--raw", "-p", PROMPT, "-n", TOKENS]
    }

    /// Has it do everything that takes a compiler; returns the story that it tells.
    fn proven(&self) -> Result<String> {
        self.run(&["--version"])?;
        self.run(&["doctor"])?;
        // Token for token what transformers generated.
        let fixture = workspace::root().join("xla-session/tests/fixtures").join(FIXTURE);
        for entry in fs::read_dir(&fixture).with_context(|| fixture.display().to_string())? {
            let entry = entry?;
            tree::copy(&entry.path(), &self.root.join("fixture").join(entry.file_name()))?;
        }
        self.run(&["check", "/fixture"])?;
        let story = self.run(&self.generate())?;
        ensure!(story.split_whitespace().count() > 10, "it tells {story:?}");
        ensure!(self.serves(&[])? == story, "serve answers something else than generate");
        Ok(story)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = roots::command(self.root, &self.program);
        command.args(arguments).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Result<String> {
        let output = self.command(arguments).output().context("cannot run unshare")?;
        let words = arguments.join(" ");
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{} {words} failed ({}):\n{}{said}",
            self.program,
            output.status,
            String::from_utf8_lossy(&output.stdout)
        );
        eprintln!("  iree-llm {words}");
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// What it says of what it cannot do.
    fn fails(&self, arguments: &[&str]) -> Result<String> {
        let output = self.command(arguments).output().context("cannot run unshare")?;
        ensure!(!output.status.success(), "{} does not fail", arguments.join(" "));
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// The story that its server tells; the server then ends when it is told to.
    fn serves(&self, more: &[&str]) -> Result<String> {
        // Nobody else takes it in the moment between.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let number = port.to_string();
        let mut arguments = vec!["serve", "-m", "tiny-tales", "--port", &number];
        arguments.extend(more);
        let mut command = self.command(&arguments);
        let mut server = Running(command.stderr(Stdio::piped()).spawn()?);
        let stderr = server.0.stderr.take().context("stderr is a pipe")?;
        let mut said = String::new();
        let mut lines = BufReader::new(stderr);
        while !said.contains("listening on") {
            ensure!(lines.read_line(&mut said)? > 0, "the server ends: {said}");
        }
        let tokens: u32 = TOKENS.parse()?;
        let body = json!({
            "model": "tiny-tales", "prompt": PROMPT, "max_tokens": tokens, "temperature": 0
        });
        let answer = post(port, "/v1/completions", &body)?;
        let text = answer["choices"][0]["text"].as_str();
        let text = text.with_context(|| format!("no text in {answer}"))?.trim().to_owned();
        // The shell's own: there may be no program of that name.
        let kill = format!("kill {}", server.0.id());
        workspace::run(Command::new("sh").args(["-c", &kill]))?;
        // Whoever writes to a closed pipe ends otherwise.
        lines.read_to_string(&mut said)?;
        let status = server.0.wait()?;
        ensure!(status.success(), "the server ended with {status}: {said}");
        eprintln!("  iree-llm {}: {text:?}", arguments.join(" "));
        Ok(text)
    }
}

/// A process that ends with whoever waits for it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended, or it is too late to do anything.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The answer to a request: a whole one, as no library is worth it here.
fn post(port: u16, path: &str, body: &Value) -> Result<Value> {
    let body = body.to_string();
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no whole answer")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{answer}");
    Ok(serde_json::from_str(body)?)
}

/// Builds everything once more, in another folder, from a copy of the sources in another folder.
pub fn is_reproducible(
    packages: &Packages,
    folder: &Path,
    release: &Release,
    flags: &flags::Dist,
) -> Result<()> {
    eprintln!("==> everything once more");
    let again = scratch(folder).join("once-more");
    roots::remove(&again)?;
    let sources = again.join("sources");
    let mut git = Command::new("git");
    git.arg("-C").arg(workspace::root()).args(["ls-files", "-z"]);
    let listed = iree_src::process::output("git ls-files", &mut git)?;
    for name in listed.split('\0').filter(|name| !name.is_empty()) {
        let from = workspace::root().join(name);
        // What is removed and not yet committed.
        if from.exists() {
            tree::copy(&from, &sources.join(name))?;
        }
    }
    // The system that has the C++ library is the same.
    let system = flags.libstdcxx.clone().unwrap_or(roots::debian(folder, roots::OLDEST)?);
    let flags = flags::Dist { libstdcxx: Some(system), ..flags.clone() };
    let made = again.join("made");
    let others = make(&sources, &made, release, &flags)?;
    let (sums, other_sums) = (packages.sums()?, others.sums()?);
    if sums == other_sums {
        println!("two builds, in two folders, give the same bytes:\n{sums}");
        return Ok(());
    }
    let different = differences(&tree_of(folder), &tree_of(&made))?;
    bail!("two builds differ:\n{sums}\n{other_sums}\nin these files: {}", different.join(", "))
}

/// The names of files that are not the same in two trees.
fn differences(one: &Path, other: &Path) -> Result<Vec<String>> {
    let read = |folder: &Path| -> Result<Vec<(String, PathBuf)>> {
        Ok(tree::Tree::read(folder)?.files.into_iter().map(|it| (it.name, it.path)).collect())
    };
    let (mut all, others) = (read(one)?, read(other)?);
    all.extend(others.into_iter().filter(|it| !one.join(&it.0).exists()));
    let differs = |name: &str| {
        let read = |folder: &Path| fs::read(folder.join(name)).ok();
        read(one) != read(other)
    };
    Ok(all.into_iter().map(|it| it.0).filter(|name| differs(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        let write = |folder: &Path, name: &str, text: &str| {
            fs::create_dir_all(folder).unwrap();
            fs::write(folder.join(name), text).unwrap();
        };
        for folder in [&one, &other] {
            write(folder, "a", "same");
            write(folder, "b", &folder.display().to_string());
        }
        write(&other, "c", "more");
        assert_eq!(differences(&one, &other).unwrap(), ["b", "c"]);
    }
}
