//! The `explain` example, as a program: its answers and its strictness.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::{Value, json};

/// The example. `cargo test` builds it, but `cargo test --test explain` does
/// not, and an old one would be worse than none.
fn example() -> &'static Path {
    static EXAMPLE: OnceLock<PathBuf> = OnceLock::new();
    EXAMPLE.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).unwrap();
        if let Some(cargo) = std::env::var_os("CARGO") {
            let mut build = Command::new(cargo);
            build.args([
                "build",
                "--quiet",
                "--package",
                "cgroups",
                "--example",
                "explain",
            ]);
            build.args(profile.ends_with("release").then_some("--release"));
            assert!(build.status().unwrap().success());
        }
        profile.join("examples/explain")
    })
}

fn run(config: &Path, arguments: &[&str]) -> Output {
    Command::new(example())
        .arg(config)
        .args(arguments)
        .output()
        .unwrap()
}

fn explain(config: &Value, arguments: &[&str]) -> (Value, Option<i32>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config.to_string()).unwrap();
    let output = run(file.path(), arguments);
    let answer =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    (answer, output.status.code())
}

fn config() -> Value {
    json!({
        "ociVersion": "1.0.2",
        "annotations": {"org.systemd.property.CollectMode": "'inactive-or-failed'"},
        "linux": {
            "cgroupsPath": "system.slice:docker:abc",
            "resources": {
                "cpu": {"shares": 4096, "quota": 123_456, "period": 100_000},
                "memory": {"limit": 134_217_728, "swap": 134_217_728},
            },
        },
    })
}

#[test]
fn a_scope_on_v2() {
    let (answer, status) = explain(
        &config(),
        &["--mode", "unified", "--systemd", "v252.39-1", "--id", "abc"],
    );
    assert_eq!(status, Some(0));
    assert_eq!(
        answer,
        json!({
            "path": "/system.slice/docker-abc.scope",
            "unit": "docker-abc.scope",
            "slice": "system.slice",
            "files": [
                ["memory.swap.max", "0"],
                ["memory.max", "134217728"],
                ["cpu.weight", "303"],
                ["cpu.max", "124000 100000"],
            ],
            "properties": {
                "Description": "container abc",
                "Slice": "system.slice",
                "Delegate": true,
                "MemoryAccounting": true,
                "CPUAccounting": true,
                "IOAccounting": true,
                "TasksAccounting": true,
                "DefaultDependencies": false,
                "MemoryMax": 134_217_728,
                "MemorySwapMax": 0,
                "CPUWeight": 303,
                "CPUQuotaPeriodUSec": 100_000,
                "CPUQuotaPerSecUSec": 1_240_000,
                "CollectMode": "inactive-or-failed",
            },
        })
    );
}

#[test]
fn the_same_place_without_systemd() {
    for mode in ["legacy", "hybrid"] {
        let (answer, status) = explain(&config(), &["--mode", mode]);
        assert_eq!(status, Some(0));
        assert_eq!(
            answer,
            json!({
                "path": "/system.slice/docker-abc.scope",
                "unit": null,
                "slice": null,
                "files": [
                    ["memory.limit_in_bytes", "134217728"],
                    ["memory.memsw.limit_in_bytes", "134217728"],
                    ["cpu.shares", "4096"],
                    ["cpu.cfs_period_us", "100000"],
                    ["cpu.cfs_quota_us", "123456"],
                ],
                "properties": {},
            })
        );
    }
}

#[test]
fn relative_to_the_own_cgroup() {
    let config = json!({"linux": {"cgroupsPath": "../x"}});
    let own = ["--own-cgroup", "/a/b", "--id", "i"];
    let path = |mode| explain(&config, &[&["--mode", mode], &own[..]].concat()).0["path"].clone();
    assert_eq!(
        (path("legacy"), path("unified")),
        (json!("/a/b/x"), json!("/a/x"))
    );
}

#[test]
fn a_limit_that_is_absent_is_not_zero() {
    for (pids, files) in [
        (json!({}), json!([])),
        (json!({"limit": 0}), json!([["pids.max", "1"]])),
    ] {
        let config = json!({"linux": {"cgroupsPath": "/x", "resources": {"pids": pids}}});
        assert_eq!(explain(&config, &["--mode", "unified"]).0["files"], files);
    }
}

#[test]
fn a_root_decides_which_weight_file() {
    let config =
        json!({"linux": {"cgroupsPath": "/p/c", "resources": {"blockIO": {"weight": 500}}}});
    let files = |root: &Path| {
        let arguments = ["--mode", "unified", "--root", root.to_str().unwrap()];
        explain(&config, &arguments).0["files"].clone()
    };
    let root = tempfile::tempdir().unwrap();
    assert_eq!(files(root.path()), json!([["io.weight", "4950"]]));
    std::fs::create_dir(root.path().join("p")).unwrap();
    std::fs::write(root.path().join("p/io.bfq.weight"), "").unwrap();
    assert_eq!(files(root.path()), json!([["io.bfq.weight", "500"]]));
}

#[test]
fn what_cannot_be_is_an_error_and_status_1() {
    for (linux, word) in [
        (json!({"cgroupsPath": "a:b"}), "slice:prefix:name"),
        (json!({"cgroupsPath": 5}), "no string"),
        (json!({}), "neither a path nor an id"),
        (
            json!({"cgroupsPath": "/x", "resources": {"memory": {"limit": 5, "swap": 4}}}),
            "less than memory.limit",
        ),
        (
            json!({"cgroupsPath": "/x", "resources": {"memory": "much"}}),
            "linux.resources",
        ),
    ] {
        let (answer, status) = explain(&json!({ "linux": linux }), &["--mode", "unified"]);
        assert_eq!(status, Some(1));
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains(word), "{error}");
        assert_eq!(answer.as_object().unwrap().len(), 1);
    }
    let output = run(
        Path::new("/nonexistent/config.json"),
        &["--mode", "unified"],
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"error\""));
}

#[test]
fn wrong_arguments_are_status_2() {
    for arguments in [
        &[][..],
        &["--mode"],
        &["--mode", "v2"],
        &["--mode", "unified", "--mode", "unified"],
        &["--mode", "unified", "--systemd", "new"],
        &["--mode", "unified", "--own-cgroup", "a"],
        &["--mode", "unified", "--what"],
        &["--mode", "unified", "second.json"],
        &["--mode", "unified", "--rootless", "--rootless"],
    ] {
        let output = run(Path::new("config.json"), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty());
        assert!(String::from_utf8_lossy(&output.stderr).contains("usage:"));
    }
}
