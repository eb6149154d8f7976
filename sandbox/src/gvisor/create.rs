//! Creates containers: the spec for runsc, the command, and the sentry it leaves to us.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;
use oci_spec::runtime::Spec;

use super::console::Console;
use super::table::{Container, Phase, Sentry};
use super::urpc::{Address, Control};
use super::{Created, Gvisor, loopback, state};
use crate::cleanup;
use crate::config::{ALLOW_SUID, Network, Setup};
use crate::error::{Error, Result};
use crate::spec::{self, Place};
use crate::stdio::Stdio;
use crate::terminal;

impl Gvisor {
    /// Creates a container: the sandbox with it if it is the first, else in it.
    ///
    /// After a failure nothing of it is left.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::Spec`], or why runsc could not.
    pub async fn create(
        &self,
        id: &str,
        bundle: &Path,
        spec: &Spec,
        stdio: Stdio,
    ) -> Result<Created> {
        {
            let mut table = self.table.lock();
            if table.containers.contains_key(id) {
                return Err(Error::AlreadyExists { id: id.to_owned() });
            }
            if id != self.id() {
                table.sentry(self.id())?;
            }
            table
                .containers
                .insert(id.to_owned(), Container::new(bundle.to_owned()));
        }
        let created = self.create_new(id, bundle, spec, stdio).await;
        if created.is_err() {
            if let Err(error) = self.clean_up(id, bundle).await {
                log::warn!("after the failed create of {id}: {error}");
            }
            self.table.lock().forget(id);
        }
        created
    }

    async fn create_new(
        &self,
        id: &str,
        bundle: &Path,
        spec: &Spec,
        stdio: Stdio,
    ) -> Result<Created> {
        let first = id == self.id();
        let place = Place {
            id,
            sandbox_id: self.id(),
            bundle,
            home: &self.home,
            oom_score_adj: own_oom_score_adj(),
        };
        let rewritten = spec::rewrite(spec, place)?;
        let dir = bundle.join(cleanup::DIR);
        std::fs::create_dir_all(&dir).map_err(Error::io("create", &dir))?;
        let config = dir.join("config.json");
        rewritten
            .save(&config)
            .map_err(|error| Error::io("write", &config)(std::io::Error::other(error)))?;
        if first {
            self.set_up(spec, &dir).await?;
        }

        let mut args: Vec<OsString> = vec!["--bundle".into(), dir.clone().into()];
        let console = match &stdio {
            Stdio::Terminal { width, height } => {
                let console = Console::bind(&dir).map_err(Error::io("listen in", &dir))?;
                args.extend(["--console-socket".into(), console.address().into()]);
                Some((console, *width, *height))
            }
            Stdio::Null | Stdio::Piped { .. } => None,
        };
        // The first container's streams are taken at create, others' at start.
        let (now, later) = if first {
            (stdio, None)
        } else {
            (Stdio::Null, Some(stdio))
        };
        // The sentry keeps to what it is told when it is created.
        let given = self.runsc.config.flags.contains_key(ALLOW_SUID);
        let suid = first && !given && spec::may_gain_privileges(spec);
        let option = suid.then_some(ALLOW_SUID);
        self.command("create", id, option, args, &dir, now).await?;
        let console = match console {
            None => None,
            Some((console, width, height)) => {
                let master = console
                    .receive()
                    .await
                    .map_err(Error::io("listen in", &dir))?;
                if (width, height) != (0, 0) {
                    terminal::resize(&master, width, height).map_err(Error::io("resize", &dir))?;
                }
                Some(master)
            }
        };

        let pid = if first {
            self.adopt_sentry()?
        } else {
            self.live_sentry()?.pid
        };
        if first && self.network() == Some(Network::Sandbox) && spec::makes_network_namespace(spec)
        {
            let namespace = PathBuf::from(format!("/proc/{pid}/ns/net"));
            loopback::bring_up(&namespace).map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Error::Runsc {
                    verb: "create",
                    id: id.to_owned(),
                    cause: "the sentry ended at once".to_owned(),
                },
                _ => Error::io("bring loopback up in", namespace)(error),
            })?;
        }
        let mut table = self.table.lock();
        let container = table.container(id)?;
        container.phase = Phase::Created;
        container.stdio = later;
        container.capabilities = spec
            .process()
            .as_ref()
            .and_then(|p| p.capabilities().clone());
        container.mounts_cgroups = spec::mounts_cgroups(spec);
        container.has_stop_hooks = spec
            .hooks()
            .as_ref()
            .and_then(|hooks| hooks.poststop().as_ref())
            .is_some_and(|hooks| !hooks.is_empty());
        Ok(Created { pid, console })
    }

    /// Learns of the sentry that create has left to us, and waits for its end.
    fn adopt_sentry(&self) -> Result<Pid> {
        let root = self.runsc.config.sandbox_root(self.id());
        let missing = || Error::NotFound {
            object: format!("the sentry of sandbox {}", self.id()),
        };
        let state = state::load(&root, self.id(), self.id())?.ok_or_else(missing)?;
        let pid = state.sentry.ok_or_else(missing)?;
        let old = matches!(state.address, Address::Abstract(_));
        if old {
            log::warn!(
                "sandbox {}: this runsc is of 2022: any local user of its network namespace can \
                 control the sandbox, and sandbox networking may fail; a current one is recommended",
                self.id()
            );
        }
        let control = Control::new(self.id(), state.address);
        let sentry = Sentry {
            pid,
            control,
            uid: state.uid,
            gid: state.gid,
            old,
        };
        {
            let mut table = self.table.lock();
            table.sentry = Some(sentry);
            table.ended_by = None;
        }

        let (children, table) = (self.runsc.children.clone(), self.table.clone());
        let id = self.id().to_owned();
        tokio::spawn(async move {
            let reaped = children.wait(pid).await;
            table.lock().sentry_ended(&id, pid, reaped);
        });
        Ok(pid)
    }

    async fn set_up(&self, spec: &Spec, dir: &Path) -> Result<()> {
        if self.setup.get().is_none() {
            let network = self
                .runsc
                .config
                .network
                .unwrap_or_else(|| spec::network(spec));
            let platform = self.runsc.choose_platform(dir).await?;
            // A second create cannot be here at the same time: the id is taken.
            let _ = self.setup.set(Setup { platform, network });
        }
        Ok(())
    }
}

/// The lowest oom score adjustment that may be given without a capability.
fn own_oom_score_adj() -> i32 {
    let text = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}
