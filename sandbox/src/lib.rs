//! Runs the containers of a pod in a sandbox: gVisor, driven through `runsc`
//! and the sandbox's own control socket.
//!
//! [`Gvisor`] is one sandbox and everything that can be asked of it;
//! [`Children`] is the one place where child processes are reaped;
//! [`launch`] starts host processes inside their cgroup; [`cleanup`] removes
//! what a shim that died has left. The crate knows OCI and nothing of containerd.

pub mod children;
pub mod cleanup;
mod config;
#[cfg(test)]
mod damage;
mod error;
pub mod gvisor;
pub mod launch;
pub mod spec;
mod stdio;
pub mod terminal;

pub use children::{Children, Reaped, Status};
pub use config::{Config, Deadlines, Network, Platform};
pub use error::{Error, Result};
pub use gvisor::exit::Exit;
pub use gvisor::usage::{Bytes, Nanos, Usage};
pub use gvisor::version::Version;
pub use gvisor::{Created, Exec, Gvisor, Target};
pub use launch::{Join, Launcher};
pub use stdio::Stdio;
