//! A live table of what containers use, from the figures that Rampart pushes:
//! subscribes through containerd with `ctr events`, as any client may.
//!
//!     cargo run -p integration --example live [-- ADDRESS]
//!
//! ADDRESS is containerd's socket, `/run/containerd/containerd.sock` unless given.
//! A row appears with the first event of a container (every 10 s unless
//! `metrics_interval` says otherwise) and goes when the container is deleted. ^C
//! ends it.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write as _};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use integration::events::{Event, parse};
use integration::figures::Figures;

fn main() -> ExitCode {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "/run/containerd/containerd.sock".to_owned());
    match follow(&address) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("live: ctr --address {address} events: {error}");
            ExitCode::FAILURE
        }
    }
}

fn follow(address: &str) -> io::Result<()> {
    let mut ctr = Command::new("ctr")
        .args(["--address", address, "events"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let events = ctr.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let mut table = Table::default();
    for line in BufReader::new(events).lines() {
        if let Some(event) = parse(&line?)
            && table.take(&event)
        {
            io::stdout().write_all(table.text().as_bytes())?;
            io::stdout().flush()?;
        }
    }
    let status = ctr.wait()?;
    Err(io::Error::other(format!("it ended, {status}")))
}

/// The containers by namespace and id.
#[derive(Default)]
struct Table(BTreeMap<(String, String), Row>);

struct Row {
    at: Instant,
    now: Figures,
    /// CPU time in percent of one CPU; known from the second event on.
    cpu: Option<f64>,
}

impl Table {
    /// Takes an event in; whether it changed anything.
    fn take(&mut self, event: &Event) -> bool {
        let id = |key: &str| event.data[key].as_str().unwrap_or_default().to_owned();
        match event.topic.as_str() {
            "/tasks/metrics" => {
                let Some(now) = Figures::of_event(&event.data) else {
                    return false;
                };
                let key = (event.namespace.clone(), id("id"));
                let at = Instant::now();
                let cpu = self.0.get(&key).map(|before| {
                    let nanos = at.duration_since(before.at).as_nanos() as f64;
                    100.0 * now.cpu.saturating_sub(before.now.cpu) as f64 / nanos
                });
                self.0.insert(key, Row { at, now, cpu });
                true
            }
            "/tasks/delete" => {
                let key = (event.namespace.clone(), id("container_id"));
                self.0.remove(&key).is_some()
            }
            _ => false,
        }
    }

    fn text(&self) -> String {
        const MIB: u64 = 1 << 20;
        // Home, and the rest of the screen away.
        let mut text = format!(
            "\x1b[H\x1b[J{:<12} {:<24} {:>7} {:>9} {:>9} {:>9} {:>6} {:>10} {:>19}\n",
            "NAMESPACE",
            "ID",
            "CPU %",
            "MEM MiB",
            "MOST",
            "LIMIT",
            "PIDS",
            "WRITTEN",
            "NET rx/tx KiB"
        );
        for ((namespace, id), Row { now, cpu, .. }) in &self.0 {
            let cpu = cpu.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.1}"));
            let limit = match now.memory_limit {
                limit if limit > 1 << 62 => "none".to_owned(),
                limit => (limit / MIB).to_string(),
            };
            let (rx, tx) = now.network.values().fold((0, 0), |(rx, tx), one| {
                (rx + one.0 / 1024, tx + one.1 / 1024)
            });
            let id: String = id.chars().take(24).collect();
            text += &format!(
                "{namespace:<12} {id:<24} {cpu:>7} {:>9} {:>9} {limit:>9} {:>6} {:>10} {:>19}\n",
                now.memory / MIB,
                now.most_memory / MIB,
                now.pids,
                now.written / MIB,
                format!("{rx}/{tx}"),
            );
        }
        text
    }
}
