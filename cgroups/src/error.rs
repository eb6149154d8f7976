//! What can go wrong with a cgroup, each with the object, the cause and what
//! to do about it.

use std::io;
use std::path::PathBuf;

use nix::unistd::Pid;

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate. The message names the object and the value; the
/// kernel's own reason, where there is one, is the source and part of the text.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path in `linux.cgroupsPath` cannot be honoured.
    #[error("cgroups path {path:?}: {reason}")]
    Path {
        /// The path as it was given.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// A resource in `linux.resources` contradicts itself or its host.
    #[error("resource {key} = {value}: {reason}")]
    Resource {
        /// The OCI name of the resource, such as `memory.swap`.
        key: String,
        /// The value as it was given.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// A limit was asked for whose controller the host does not have here.
    #[error(
        "cannot write {value} to {file}: the {controller} controller is not available to {path}; \
         mount or enable it, or leave the limit out"
    )]
    NoController {
        /// The controller.
        controller: String,
        /// The file of the controller.
        file: String,
        /// What was to be written.
        value: String,
        /// The cgroup, below the hierarchy's mount.
        path: PathBuf,
    },

    /// There is no cgroup hierarchy at all.
    #[error("no cgroup hierarchy is mounted below {root}; mount cgroup2 there")]
    NoHierarchy {
        /// Where one was looked for.
        root: PathBuf,
    },

    /// A file of the kernel could not be read.
    #[error("read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },

    /// A file of the kernel does not look as it should.
    #[error("read {path}: unexpected content {content:?}")]
    Content {
        /// The file.
        path: PathBuf,
        /// The line in question.
        content: String,
    },

    /// A value was refused.
    #[error("write {value:?} to {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The value.
        value: String,
        /// The kernel's reason.
        source: io::Error,
    },

    /// A cgroup could not be made.
    #[error("make cgroup {path}: {source}")]
    Create {
        /// The directory.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },

    /// A cgroup could not be removed.
    #[error("remove cgroup {path}: {source}; it holds {} processes", pids.len())]
    Remove {
        /// The directory.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
        /// Who is in it.
        pids: Vec<Pid>,
    },

    /// A cgroup that cannot hold processes with memory and I/O limits.
    #[error(
        "cgroup {path} is of type {kind:?}, not a domain; choose a path outside the threaded subtree"
    )]
    NotADomain {
        /// The directory.
        path: PathBuf,
        /// What `cgroup.type` says.
        kind: String,
    },

    /// A limit below what is in use already, with `checkBeforeUpdate` set.
    #[error(
        "memory limit {limit} of {path} is below the {usage} bytes in use; raise it, or free memory first"
    )]
    BelowUsage {
        /// The directory.
        path: PathBuf,
        /// The limit in bytes.
        limit: u64,
        /// What is used, in bytes.
        usage: u64,
    },

    /// A process is not where it should be.
    #[error("process {pid} is in {found:?} of hierarchy {hierarchy:?}, not in {wanted}")]
    NotInside {
        /// The process.
        pid: Pid,
        /// The hierarchy's controllers; empty for cgroup v2.
        hierarchy: String,
        /// The directory it should be in.
        wanted: PathBuf,
        /// Where it is.
        found: PathBuf,
    },

    /// A directory that no mounted hierarchy of this process contains.
    #[error("{path} is in no mounted cgroup hierarchy")]
    NotACgroup {
        /// The directory.
        path: PathBuf,
    },

    /// The caller asked to kill or freeze itself.
    #[error(
        "cgroup {path} holds the calling process {pid}; leave it before killing or freezing it"
    )]
    HoldsCaller {
        /// The cgroup, below the hierarchy's mount.
        path: PathBuf,
        /// The calling process.
        pid: Pid,
    },

    /// The time ran out.
    #[error("cgroup {path}: {what} took too long; processes in it: {pids:?}")]
    TimedOut {
        /// The cgroup, below the hierarchy's mount.
        path: PathBuf,
        /// What was awaited.
        what: &'static str,
        /// Who is in it still.
        pids: Vec<Pid>,
    },

    /// The host has no file that tells of out-of-memory kills.
    #[error("watch out-of-memory kills of {path}: {source}")]
    OomWatch {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
}
