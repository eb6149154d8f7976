//! A container's life through a real containerd, old and new.

use integration::containerd::{Containerd, Version};

fn run_prints_and_exits(version: Version) {
    let Some(containerd) = Containerd::start(version) else { return };
    let before = containerd.inventory();
    let output = containerd.run("hello", &["sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!((output.code, output.stdout.as_str()), (3, "out\n"), "{}", output.stderr);
    before.assert_same(containerd.host());
}

#[test]
fn a16() { run_prints_and_exits(Version::V1_6) }
#[test]
fn a24() { run_prints_and_exits(Version::V2_4) }
