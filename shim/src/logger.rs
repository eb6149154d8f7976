//! The shim's log: lines in containerd's style, into the bundle's `log` fifo.
//!
//! containerd opens the fifo before `start` and copies what comes into its own
//! log. A reader that is gone, or slow, must never hold the shim up: what does
//! not fit is dropped.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use log::{LevelFilter, Log, Metadata, Record};

/// Sends all log lines to the fifo of `bundle`, each with the shim's `id`.
pub fn install(bundle: &Path, id: &str, debug: bool) {
    let path = bundle.join("log");
    let fifo = Mutex::new(open(&path));
    let logger = Box::new(Logger {
        path,
        id: id.to_owned(),
        fifo,
    });
    // Only fails when a logger is installed already, which is then used.
    if log::set_boxed_logger(logger).is_ok() {
        log::set_max_level(if debug {
            LevelFilter::Debug
        } else {
            LevelFilter::Info
        });
    }
}

struct Logger {
    path: PathBuf,
    id: String,
    fifo: Mutex<Option<File>>,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let level = record.level().as_str().to_lowercase();
        let line = format!(
            "time=\"{}\" level={level} msg={:?} runtime=rampart shim={}\n",
            humantime::format_rfc3339_nanos(SystemTime::now()),
            record.args().to_string(),
            self.id,
        );
        let Ok(mut fifo) = self.fifo.lock() else {
            return;
        };
        let written = fifo.as_mut().map(|fifo| fifo.write_all(line.as_bytes()));
        // Without a reader (EPIPE, or none yet) containerd may be restarting:
        // look again, and drop the line if there is still nobody.
        let lost = match &written {
            None => true,
            Some(Err(error)) => error.kind() == std::io::ErrorKind::BrokenPipe,
            Some(Ok(())) => false,
        };
        if lost {
            *fifo = open(&self.path);
            if let Some(fifo) = fifo.as_mut() {
                let _ = fifo.write_all(line.as_bytes());
            }
        }
    }

    fn flush(&self) {}
}

/// `None` when nobody reads: a fifo opened for writing without blocking
/// refuses then.
fn open(path: &Path) -> Option<File> {
    std::fs::OpenOptions::new()
        .write(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path)
        .ok()
}
