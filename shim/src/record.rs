//! What `delete` needs to know about a task whose shim is gone, on disk.
//!
//! Written before anything is done that would have to be undone, and kept
//! beside the sandbox's own state rather than in the bundle, so that the id
//! alone leads to it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::process::Exit;

/// One task's record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The task.
    pub id: String,
    /// Its sandbox; its own id for a sandbox container.
    pub sandbox: String,
    /// Its bundle.
    pub bundle: PathBuf,
    /// Where something was mounted for its root, if anything was.
    pub rootfs: Option<PathBuf>,
    /// Its cgroup below each hierarchy's root.
    pub cgroup: PathBuf,
    /// The systemd unit of that cgroup, if systemd made it.
    pub unit: Option<String>,
    /// The cgroup was empty, and from then on this task's processes came into
    /// it: whoever is in it is the task's.
    #[serde(default)]
    pub entered: bool,
    /// cgroup directories that were made for it, in that order.
    pub made: Vec<PathBuf>,
    /// Host process that stands for it, once there is one.
    pub pid: Option<i32>,
    /// Its end, once it has come.
    pub exit: Option<Exit>,
}

/// The directory of records beside those of the sandboxes, which have ids for
/// names: no id begins with a dot.
const RECORDS: &str = ".tasks";

impl Record {
    /// The file of `id`'s record in the namespace's state directory.
    pub fn path(state_directory: &Path, id: &str) -> PathBuf {
        state_directory.join(RECORDS).join(format!("{id}.json"))
    }

    /// Writes the record in one step: a reader sees the old or the new one.
    ///
    /// # Errors
    /// The system's refusal (a full or read-only /run).
    pub fn write(&self, state_directory: &Path) -> Result<()> {
        let path = Self::path(state_directory, &self.id);
        let text = serde_json::to_vec(self).map_err(|source| Error::Json {
            what: format!("encode the record of {}", self.id),
            source,
        })?;
        // The last of the other tasks may go, and the directory with it, before
        // this record is there to hold it.
        const TRIES: u32 = 100;
        let mut tries = 0;
        loop {
            tries += 1;
            match write(&path, &text) {
                // The latter is of a directory that went while it was looked at.
                Err(Error::File { source, .. })
                    if tries < TRIES
                        && matches!(
                            source.kind(),
                            ErrorKind::NotFound | ErrorKind::AlreadyExists
                        ) => {}
                written => return written.inspect_err(|_| remove_empty(state_directory)),
            }
        }
    }

    /// Reads the record; `None` if there is none.
    ///
    /// # Errors
    /// It is there but cannot be read or understood.
    pub fn read(state_directory: &Path, id: &str) -> Result<Option<Self>> {
        let path = Self::path(state_directory, id);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(Error::File {
                    action: "read",
                    path,
                    source,
                });
            }
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|source| Error::Json {
                what: format!("parse {}", path.display()),
                source,
            })
    }

    /// Removes the record, and the state directory if nothing else is in it.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn remove(state_directory: &Path, id: &str) -> Result<()> {
        let path = Self::path(state_directory, id);
        // The fresh one is there if a shim was killed while it wrote.
        for file in [fresh(&path), path] {
            match std::fs::remove_file(&file) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(Error::file("remove", file)(error));
                }
                _ => {}
            }
        }
        remove_empty(state_directory);
        Ok(())
    }
}

/// Writes a record's file by way of a fresh one; makes its directory.
fn write(path: &Path, text: &[u8]) -> Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(Error::file("create", directory))?;
    }
    let fresh = fresh(path);
    std::fs::write(&fresh, text)
        .and_then(|()| std::fs::rename(&fresh, path))
        .map_err(|source| {
            // It may not even exist.
            let _ = std::fs::remove_file(&fresh);
            Error::file("write", path)(source)
        })
}

/// Where a record is written before it takes the place of the old one.
fn fresh(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Removes the directories if nothing is in them.
fn remove_empty(state_directory: &Path) {
    // Fails while other tasks are there, which is how it should be.
    let _ = std::fs::remove_dir(state_directory.join(RECORDS));
    let _ = std::fs::remove_dir(state_directory);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::damage::damaged;

    use super::*;

    fn sample(id: &str) -> Record {
        Record {
            id: id.into(),
            sandbox: id.into(),
            bundle: "/b".into(),
            rootfs: Some("/b/rootfs".into()),
            cgroup: "/ns/a".into(),
            unit: None,
            entered: true,
            made: vec!["/sys/fs/cgroup/cpu/ns".into()],
            pid: Some(7),
            exit: Some(Exit::by_signal(9)),
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was_and_goes_without_a_trace() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("ns");
        assert_eq!(Record::read(&state, "a").unwrap(), None);
        let record = sample("a");
        record.write(&state).unwrap();
        assert_eq!(Record::read(&state, "a").unwrap(), Some(record));
        // As a shim leaves it that is killed before the last step.
        std::fs::write(fresh(&Record::path(&state, "a")), "{").unwrap();
        Record::remove(&state, "a").unwrap();
        Record::remove(&state, "a").unwrap();
        assert!(!state.exists());
    }

    #[test]
    fn the_first_record_of_a_namespace_and_the_last_do_not_meet() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("ns");
        std::thread::scope(|scope| {
            for id in ["a", "b"] {
                let (state, record) = (&state, sample(id));
                scope.spawn(move || {
                    for _ in 0..2000 {
                        record.write(state).unwrap();
                        Record::remove(state, id).unwrap();
                    }
                });
            }
        });
        assert!(!state.exists());
    }

    #[test]
    fn a_damaged_record_is_an_error_that_names_the_file() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join(RECORDS)).unwrap();
        std::fs::write(Record::path(directory.path(), "a"), "{").unwrap();
        let error = Record::read(directory.path(), "a").unwrap_err().to_string();
        assert!(error.contains(".tasks/a.json"), "{error}");
    }

    const SAMPLE: &[u8] =
        br#"{"id":"a","sandbox":"a","bundle":"/b","rootfs":"/b/rootfs","cgroup":"/ns/a",
        "unit":null,"entered":true,"made":["/sys/fs/cgroup/cpu/ns"],"pid":7,"exit":null}"#;

    proptest! {
        #[test]
        fn any_file_is_a_record_or_an_error_that_names_it(bytes in damaged(SAMPLE)) {
            let directory = tempfile::tempdir().unwrap();
            std::fs::create_dir(directory.path().join(RECORDS)).unwrap();
            std::fs::write(Record::path(directory.path(), "a"), &bytes).unwrap();
            if let Err(error) = Record::read(directory.path(), "a") {
                prop_assert!(error.to_string().contains(".tasks/a.json"), "{error}");
            }
        }
    }
}
