//! Configuration files of a private containerd, as text.

use std::path::Path;

use crate::tools;

/// A line of containerd's that the shim must serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Debian 12's; `start` gets bare options and answers a bare address.
    V1_6,
    /// The newest; `start` speaks the bootstrap protocol in protobuf.
    V2_4,
}

/// What a private containerd's own directory holds.
pub(crate) mod place {
    pub(crate) const CONFIG: &str = "containerd.toml";
    pub(crate) const SOCKET: &str = "c.sock";
    pub(crate) const LOG: &str = "containerd.log";
    pub(crate) const RAMPART: &str = "rampart.toml";
    pub(crate) const CNI: &str = "cni";
}

/// The runtime's name for pods, as `crictl runp --runtime` takes it.
pub const HANDLER: &str = "tested";

/// containerd's configuration, for a containerd that lives in `directory`.
///
/// `rampart_config` has the runtime's options name the file of our own settings
/// in the directory.
pub(crate) fn containerd(version: Version, directory: &Path, rampart_config: bool) -> String {
    let dir = directory.display();
    let pause = tools::PAUSE_IMAGE;
    let runtime = tools::runtime();
    let options = |table: &str| {
        if rampart_config {
            format!(
                "[{table}.options]\n  ConfigPath = \"{dir}/{}\"\n",
                place::RAMPART
            )
        } else {
            String::new()
        }
    };
    // Without CAP_SYS_RESOURCE a score below our own cannot be set; the other
    // settings keep everything in the test's directory.
    let (number, cri) = match version {
        Version::V1_6 => {
            let cri = r#"plugins."io.containerd.grpc.v1.cri""#;
            let runtimes = format!("{cri}.containerd.runtimes");
            let text = format!(
                r#"
[{cri}]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  sandbox_image = "{pause}"
[{cri}.cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{dir}/{cni}"
[{cri}.containerd]
  default_runtime_name = "{HANDLER}"
[{runtimes}.{HANDLER}]
  runtime_type = "{runtime}"
{options}"#,
                cni = place::CNI,
                options = options(&format!("{runtimes}.{HANDLER}")),
            );
            (2, text)
        }
        Version::V2_4 => {
            let cri = "plugins.'io.containerd.cri.v1.runtime'";
            let runtimes = format!("{cri}.containerd.runtimes");
            let text = format!(
                r#"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{pause}"
[{cri}]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[{cri}.cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "{dir}/{cni}"
[{cri}.containerd]
  default_runtime_name = "{HANDLER}"
[{runtimes}.{HANDLER}]
  runtime_type = "{runtime}"
{options}"#,
                cni = place::CNI,
                options = options(&format!("{runtimes}.{HANDLER}")),
            );
            (3, text)
        }
    };
    format!(
        r#"version = {number}
root = "{dir}/root"
state = "{dir}/state"
[grpc]
  address = "{dir}/{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{dir}/opt"
{cri}"#,
        socket = place::SOCKET,
    )
}

/// A bridge with addresses of its own; it lives in the test's network namespace.
pub(crate) fn cni(directory: &Path) -> String {
    format!(
        r#"{{
  "cniVersion": "0.4.0",
  "name": "rampart-test",
  "plugins": [
    {{
      "type": "bridge",
      "bridge": "rampart0",
      "isGateway": true,
      "ipam": {{
        "type": "host-local",
        "dataDir": "{}/addresses",
        "ranges": [[{{ "subnet": "10.213.0.0/24" }}]],
        "routes": [{{ "dst": "0.0.0.0/0" }}]
      }}
    }}
  ]
}}
"#,
        directory.display()
    )
}
