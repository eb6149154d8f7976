//! How long a shim takes to answer Stats, without the start of any client.
//!
//!     cargo run -p integration --example stats SOCKET ID ROUNDS
//!
//! SOCKET is the shim's, ID the container's. Prints two lines of a name, the median
//! and the 99th percentile in milliseconds: `fresh` for calls so far apart that
//! each has its figures taken anew, `kept` for calls one right after the other.

use std::error::Error;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use integration::wire::{Client, TASK_V2};
use protos::task::{StatsRequest, StatsResponse};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, id, rounds] = &arguments[..] else {
        eprintln!("stats: SOCKET ID ROUNDS");
        return ExitCode::from(2);
    };
    match measure(Path::new(socket), id, rounds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stats: {id} at {socket}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(socket: &Path, id: &str, rounds: &str) -> Result<(), Box<dyn Error>> {
    let rounds: usize = rounds.parse()?;
    let mut client = Client::connect(socket)?;
    for (name, pause) in [("fresh", FRESH), ("kept", Duration::ZERO)] {
        let mut times = Vec::new();
        for _ in 0..rounds.max(1) {
            std::thread::sleep(pause);
            times.push(time(&mut client, id)?);
        }
        times.sort();
        let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
        let [median, late] = [at(50), at(99)].map(|time| time.as_secs_f64() * 1000.0);
        writeln!(io::stdout(), "{name} {median:.2} {late:.2}")?;
    }
    Ok(())
}

fn time(client: &mut Client, id: &str) -> Result<Duration, String> {
    let request = StatsRequest {
        id: id.to_owned(),
        ..StatsRequest::default()
    };
    let start = Instant::now();
    let answer: StatsResponse = client
        .call(TASK_V2, "Stats", &request)
        .map_err(|refusal| refusal.message)?;
    let taken = start.elapsed();
    if answer.stats.value.is_empty() {
        return Err("no figures".to_owned());
    }
    Ok(taken)
}

/// Longer than figures are kept for.
const FRESH: Duration = Duration::from_millis(110);
