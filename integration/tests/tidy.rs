//! The house rules that no other tool checks.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use integration::{process, skip, wait};

/// What each crate may depend on of ours: a way without a way back.
const DEPENDENCIES: [(&str, &[&str]); 5] = [
    ("protos", &[]),
    ("cgroups", &[]),
    ("sandbox", &["cgroups", "protos"]),
    ("shim", &["sandbox", "cgroups", "protos"]),
    ("integration", &["protos"]),
];

/// The length from which a file is looked at again; it is said, not refused.
const LONG: usize = 400;

/// All files of the repository, or nothing where there is none: in the test host.
fn files() -> Option<Vec<PathBuf>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    if !root.join(".git").exists() {
        skip("the repository is not here");
        return None;
    }
    let mut git = Command::new("git");
    git.current_dir(root)
        .args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let listing = process::run(&mut git, wait::LIMIT).ok();
    let files = listing.lines().map(|line| root.join(line));
    Some(files.filter(|path| path.is_file()).collect())
}

fn rust_files() -> Option<Vec<(PathBuf, String)>> {
    let files = files()?.into_iter();
    let rust = files.filter(|path| path.extension().is_some_and(|kind| kind == "rs"));
    Some(
        rust.map(|path| {
            let text = fs::read_to_string(&path).expect("a source file is text");
            (path, text)
        })
        .collect(),
    )
}

#[test]
fn every_file_opens_with_its_one_job() {
    let Some(files) = rust_files() else { return };
    assert!(!files.is_empty());
    for (path, text) in files {
        assert!(
            text.starts_with("//! "),
            "{}: no `//!` header",
            path.display()
        );
        assert!(
            path.file_name().is_none_or(|name| name != "mod.rs"),
            "{}: name it after its module, beside the directory",
            path.display()
        );
    }
}

#[test]
fn long_files_are_named() {
    let Some(files) = rust_files() else { return };
    let is_test = |path: &Path| path.components().any(|part| part.as_os_str() == "tests");
    for (path, text) in files.iter().filter(|(path, _)| !is_test(path)) {
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
        let lines = code.lines().count();
        if lines > LONG {
            eprintln!(
                "{}: {lines} lines without tests: can it be two?",
                path.display()
            );
        }
        assert!(
            lines < 3 * LONG,
            "{}: {lines} lines without tests",
            path.display()
        );
    }
}

#[test]
fn unsafe_is_forbidden_everywhere() {
    let Some(files) = files() else { return };
    let manifests = files.iter().filter(|path| path.ends_with("Cargo.toml"));
    for manifest in manifests {
        let text = fs::read_to_string(manifest).expect("a manifest is text");
        let generated = text.contains("name = \"protos\"");
        assert!(
            text.contains("unsafe_code = \"forbid\"")
                || text.contains("[lints]\nworkspace = true")
                || generated,
            "{}: does not take over the workspace's lints",
            manifest.display()
        );
    }
}

#[test]
fn dependencies_go_one_way() {
    let Some(files) = files() else { return };
    let allowed = BTreeMap::from(DEPENDENCIES);
    for manifest in files.iter().filter(|path| path.ends_with("Cargo.toml")) {
        let text = fs::read_to_string(manifest).expect("a manifest is text");
        let Some(name) = text
            .lines()
            .find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
        else {
            continue; // the workspace
        };
        let may = allowed
            .get(name)
            .unwrap_or_else(|| panic!("{name} has no place in the order of crates yet"));
        for line in text.lines() {
            let key = line.split(['.', ' ', '=']).next().unwrap_or("");
            if allowed.contains_key(key) && line.contains("workspace") {
                assert!(may.contains(&key), "{name} must not depend on {key}");
            }
        }
    }
    let cgroups = files
        .iter()
        .find(|path| path.ends_with("cgroups/Cargo.toml"));
    let text = fs::read_to_string(cgroups.expect("the crate is there")).expect("it is text");
    for foreign in ["tokio", "protobuf", "containerd"] {
        let depends = text.lines().any(|line| line.starts_with(foreign));
        assert!(!depends, "cgroups must stay free of {foreign}");
    }
}

#[test]
fn nothing_of_the_machine_it_was_written_on() {
    let Some(files) = files() else { return };
    // In halves, so that this file is not what is found.
    let traces = [
        ["/wo", "rk/main"],
        ["/wo", "rk/shared"],
        ["/wo", "rk/wt-"],
        ["/root/", "tools-cache"],
        ["index.crates", ".io-"],
    ];
    for path in files {
        let Ok(text) = fs::read_to_string(&path) else {
            continue; // no text
        };
        for trace in &traces {
            let trace = trace.concat();
            let line = text.lines().position(|line| line.contains(&trace));
            if let Some(line) = line {
                panic!("{}:{}: contains {trace}", path.display(), line + 1);
            }
        }
    }
}
