//! The harness of the integration tests: private containerds, a mock of
//! containerd's event service, a driver of the shim's command line, and an
//! inventory that shows what a test left behind.
//!
//! Nothing here links code of the shim: only its built binary is driven. A
//! fault of the machine or of the harness panics with the reason, as a failed
//! assertion does; what a machine cannot offer makes a test [`skip`].

pub mod bundle;
pub mod cgroups;
pub mod config;
pub mod containerd;
pub mod events;
pub mod faults;
pub mod figures;
pub mod host;
pub mod inventory;
pub mod kubelet;
pub mod mock;
pub mod process;
pub mod setup;
pub mod shim;
pub mod tools;
pub mod wait;
pub mod watch;
pub mod wire;

use std::fs::OpenOptions;
use std::io::Write as _;

/// Makes a test out of each function named, once for every containerd: it gets
/// the containerd as its argument, or is not called where there is none.
#[macro_export]
macro_rules! on_each_containerd {
    ($($test:ident),* $(,)?) => {
        mod containerd_1_6 {
            $(#[test]
            fn $test() {
                use $crate::containerd::{Containerd, Version};
                if let Some(mut containerd) = Containerd::start(Version::V1_6) {
                    super::$test(&mut containerd);
                }
            })*
        }
        mod containerd_2_4 {
            $(#[test]
            fn $test() {
                use $crate::containerd::{Containerd, Version};
                if let Some(mut containerd) = Containerd::start(Version::V2_4) {
                    super::$test(&mut containerd);
                }
            })*
        }
    };
}

/// Says why the current test is not run, and has it counted as skipped.
///
/// The line also goes to the file that `RAMPART_SKIPS` names, from which the
/// closing line of `make test` takes its number.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let line = format!("skipped {}: {reason}\n", thread.name().unwrap_or("a test"));
    eprint!("{line}");
    if let Some(path) = std::env::var_os("RAMPART_SKIPS") {
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .unwrap_or_else(|error| panic!("cannot note a skip in {}: {error}", path.display()));
    }
}
