//! Chooses the platform, and shows by trying whether KVM works.
//!
//! That `/dev/kvm` can be opened says nothing: on nested hosts it may be there
//! and never run a guest. So a sandbox is booted in a child with a deadline.

use std::ffi::OsString;
use std::path::Path;

use super::command::Runsc;
use crate::children::Status;
use crate::cleanup::PROBE;
use crate::config::{Network, Platform, Setup};
use crate::error::{Error, Result};
use crate::stdio::null;

impl Runsc {
    /// The platform to use; `dir` is for the files of a probe.
    pub(super) async fn choose_platform(&self, dir: &Path) -> Result<Platform> {
        match self.config.platform {
            chosen @ (Platform::Systrap | Platform::Ptrace) => Ok(chosen),
            Platform::Kvm => self.probe(Platform::Kvm, dir).await.map(|()| Platform::Kvm),
            Platform::Auto => match self.probe(Platform::Kvm, dir).await {
                Ok(()) => Ok(Platform::Kvm),
                Err(error) => {
                    log::info!("{error}; using systrap");
                    Ok(Platform::Systrap)
                }
            },
        }
    }

    /// Boots a sandbox that does nothing.
    pub(super) async fn probe(&self, platform: Platform, dir: &Path) -> Result<()> {
        let failed = |cause: String| Error::Platform {
            platform: platform.name(),
            cause,
        };
        if platform == Platform::Kvm && !Path::new("/dev/kvm").exists() {
            return Err(failed("there is no /dev/kvm".to_owned()));
        }
        let probe = dir.join(PROBE);
        let log = dir.join("probe.log");
        std::fs::create_dir_all(&probe).map_err(Error::io("create", &probe))?;
        // Its own state directory: it must not be mixed up with the sandbox's.
        let root = format!("--root={}", probe.display());
        let setup = Setup {
            platform,
            network: Network::None,
        };
        let mut args: Vec<OsString> = self
            .config
            .global_flags(&self.sandbox_id, setup, &log)
            .into_iter()
            .map(|flag| {
                if flag.starts_with("--root=") {
                    root.clone()
                } else {
                    flag
                }
            })
            .map(OsString::from)
            .collect();
        args.extend(["--ignore-cgroups", "do", "/bin/true"].map(OsString::from));
        let nowhere = Path::new("/dev/null");
        let mut command = self
            .launcher
            .command(nowhere, &self.config.runsc, None, args);
        let open = || null().map_err(Error::io("open", "/dev/null"));
        command.stdin(open()?).stdout(open()?).stderr(open()?);
        // A killed `runsc do` leaves what it has put there.
        command.env("TMPDIR", &probe);

        let after = self.config.deadlines.probe;
        let ended = self.run_to_end(command, after).await;
        let left = crate::cleanup::end_sandboxes_of(&probe, &self.launcher.join).await;
        match ended?.map(|reaped| reaped.status) {
            Some(Status::Exited(0)) => left,
            None => Err(failed(format!(
                "a trial sandbox did not end within {after:?}"
            ))),
            Some(status) => Err(failed(format!("a trial sandbox failed: {status:?}"))),
        }
    }
}
