//! Where the programs under test, their peers and the images are.
//!
//! The same test program runs here and in the test host: `RAMPART_BIN_DIR` names
//! a directory that holds everything. Without it the shim is the one that cargo
//! built beside the test, the rest comes from the cache that `make tools` fills.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The runtime that tests name to containerd.
pub const RAMPART: &str = "io.containerd.rampart.v2";

/// The reference: what a test expects must be true of it too.
pub const RUNC: &str = "io.containerd.runc.v2";

/// The image of `tools/image` that tests run.
pub const IMAGE: &str = "docker.io/library/rampart-test:latest";

/// The image of `tools/image` that holds a pod.
pub const PAUSE_IMAGE: &str = "docker.io/library/rampart-pause:latest";

/// The runtime under test: Rampart's, or what `RAMPART_TEST_RUNTIME` says, so
/// that the reference can be put through the same tests.
pub fn runtime() -> String {
    env::var("RAMPART_TEST_RUNTIME").unwrap_or_else(|_| RAMPART.to_owned())
}

/// Tells whether Rampart itself is under test.
pub fn is_rampart() -> bool {
    runtime() == RAMPART
}

/// The shim's binary for the runtime under test.
pub fn shim() -> PathBuf {
    if is_rampart() {
        rampart_directory().join("containerd-shim-rampart-v2")
    } else {
        tool("containerd-shim-runc-v2")
    }
}

/// A program of the shared directory or the cache; elsewhere on the `PATH` if it
/// is in neither.
pub fn tool(name: &str) -> PathBuf {
    let path = tools_directory().join(name);
    if path.exists() {
        path
    } else {
        PathBuf::from(name)
    }
}

/// The environment that everything runs in: `PATH` first has the shim under test
/// and the tools built with it, then the system's programs.
pub fn environment() -> Vec<(OsString, OsString)> {
    let search = [
        rampart_directory(),
        tools_directory(),
        PathBuf::from("/usr/local/sbin"),
        PathBuf::from("/usr/sbin"),
        PathBuf::from("/usr/bin"),
        PathBuf::from("/sbin"),
        PathBuf::from("/bin"),
    ];
    environment_with(search)
}

/// As [`environment`] for Debian's containerd: the system's own programs come
/// before those of the cache, so that it meets the runc shim it was made for.
pub fn environment_of_debian() -> Vec<(OsString, OsString)> {
    let first = if is_rampart() {
        rampart_directory()
    } else {
        PathBuf::from("/usr/local/sbin")
    };
    environment_with([
        first,
        PathBuf::from("/usr/sbin"),
        PathBuf::from("/usr/bin"),
        PathBuf::from("/sbin"),
        PathBuf::from("/bin"),
        tools_directory(),
    ])
}

/// The archive of both images, if `make tools` has made it.
pub fn images() -> Option<PathBuf> {
    let path = tools_directory().join("rampart-images.tar");
    path.exists().then_some(path)
}

fn environment_with<const N: usize>(search: [PathBuf; N]) -> Vec<(OsString, OsString)> {
    let path = env::join_paths(search).expect("no directory of tools has a colon in its name");
    vec![
        ("PATH".into(), path),
        ("HOME".into(), "/root".into()),
        ("LANG".into(), "C.UTF-8".into()),
    ]
}

fn rampart_directory() -> PathBuf {
    if let Some(directory) = env::var_os("RAMPART_BIN_DIR") {
        return PathBuf::from(directory);
    }
    // target/debug/deps/lifecycle-… is beside target/debug/containerd-shim-….
    let test = env::current_exe().expect("the path of the test program");
    test.ancestors().nth(2).unwrap_or(Path::new("/")).to_owned()
}

fn tools_directory() -> PathBuf {
    if let Some(directory) = env::var_os("RAMPART_BIN_DIR") {
        return PathBuf::from(directory);
    }
    let cache = env::var_os("RAMPART_CACHE").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| {
        let home = env::var_os("HOME").unwrap_or_else(|| "/root".into());
        env::var_os("XDG_CACHE_HOME")
            .map_or_else(|| PathBuf::from(home).join(".cache"), PathBuf::from)
            .join("rampart")
    });
    cache.join("bin")
}
