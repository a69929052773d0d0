//! Settings of sandboxes.

use crate::config::key::{Fallback, Key};
use crate::config::kind::Kind;
use crate::config::mode::Mode;

pub const KEYS: &[Key] = &[
    Key {
        name: "sandboxes.enabled",
        environment: &[],
        default: Fallback::Text("auto"),
        kind: Kind::Choice(&["auto", "on", "off"]),
        about: "whether this process runs sandboxes, as a node; auto does where one process has all roles, on requires the role worker, and the role api or sandboxes.node_listen",
    },
    Key {
        name: "sandboxes.node_listen",
        environment: &[],
        default: Fallback::Absent,
        kind: Kind::Address,
        about: "address at which this node accepts connections of other processes of the installation, authenticated and not encrypted; without it they cannot reach its sandboxes",
    },
    Key {
        name: "sandboxes.node_address",
        environment: &[],
        default: Fallback::Absent,
        kind: Kind::Name,
        about: "host:port at which other processes reach sandboxes.node_listen; by default that address, or the name of the machine if it is unspecified",
    },
    Key {
        name: "sandboxes.node_lost_seconds",
        environment: &[],
        default: Fallback::Text("120"),
        kind: Kind::Count {
            least: 10,
            most: 86_400,
        },
        about: "sandboxes of a node that has not reported for so long are marked as stopped",
    },
    Key {
        name: "sandboxes.max_per_node",
        environment: &[],
        default: Fallback::Text("0"),
        kind: Kind::Count {
            least: 0,
            most: 1_000_000,
        },
        about: "running sandboxes of this node; further ones are placed on other nodes; 0 is no limit",
    },
    Key {
        name: "sandboxes.min_isolation",
        environment: &[],
        default: Fallback::Text("namespace"),
        kind: Kind::Choice(&["namespace", "gvisor", "vm"]),
        about: "required isolation of sandboxes; a driver that isolates less starts none",
    },
    Key {
        name: "sandboxes.unenforced_limits",
        environment: &[],
        default: Fallback::ByMode(|mode| if mode == Mode::Dev { "allow" } else { "refuse" }),
        kind: Kind::Choice(&["refuse", "allow"]),
        about: "whether a sandbox starts if this machine cannot enforce its limits on memory, processors or disk",
    },
    Key {
        name: "sandboxes.first_user_id",
        environment: &[],
        default: Fallback::Text("900000"),
        kind: Kind::Count {
            least: 0,
            most: 4_000_000_000,
        },
        about: "the first of 65,536 unused user ids for sandboxes; used where the platform runs as root",
    },
    Key {
        name: "sandboxes.memory_mb",
        environment: &[],
        default: Fallback::Text("4096"),
        kind: Kind::Count {
            least: 16,
            most: 16_777_216,
        },
        about: "memory of a sandbox that requests none, where the machine can limit it",
    },
    Key {
        name: "sandboxes.processes",
        environment: &[],
        default: Fallback::Text("4096"),
        kind: Kind::Count {
            least: 16,
            most: 4_194_304,
        },
        about: "processes and threads of a sandbox, where the machine can limit them",
    },
    Key {
        name: "sandboxes.image_mb",
        environment: &[],
        default: Fallback::Text("8192"),
        kind: Kind::Count {
            least: 1,
            most: 1_073_741_824,
        },
        about: "files of one image of a registry; a larger one is refused",
    },
    Key {
        name: "sandboxes.images_mb",
        environment: &[],
        default: Fallback::Text("51200"),
        kind: Kind::Count {
            least: 1,
            most: 1_073_741_824,
        },
        about: "files of all images on this machine; further ones are refused until unused ones are removed",
    },
    Key {
        name: "sandboxes.stop_grace_seconds",
        environment: &[],
        default: Fallback::Text("5"),
        kind: Kind::Count { least: 0, most: 600 },
        about: "time for the commands of a sandbox to end when it stops",
    },
    Key {
        name: "sandboxes.network_allow",
        environment: &[],
        default: Fallback::Text(""),
        kind: Kind::Allowed,
        about: "private addresses that sandboxes may call if their proxy_config allows it: host, host:port, address, 10.0.0.0/8, or :port",
    },
    Key {
        name: "sandboxes.max_per_workspace",
        environment: &[],
        default: Fallback::Text("100"),
        kind: Kind::Count {
            least: 0,
            most: 1_000_000,
        },
        about: "sandboxes of one workspace, stopped ones included; 0 is no limit",
    },
    Key {
        name: "sandboxes.snapshots_per_workspace",
        environment: &[],
        default: Fallback::Text("200"),
        kind: Kind::Count {
            least: 0,
            most: 1_000_000,
        },
        about: "snapshots of one workspace; 0 is no limit",
    },
    Key {
        name: "sandboxes.volumes_per_workspace",
        environment: &[],
        default: Fallback::Text("100"),
        kind: Kind::Count {
            least: 0,
            most: 1_000_000,
        },
        about: "volumes of one workspace; 0 is no limit",
    },
    Key {
        name: "sandboxes.volume_mb_per_workspace",
        environment: &[],
        default: Fallback::Text("102400"),
        kind: Kind::Count {
            least: 0,
            most: 1_073_741_824,
        },
        about: "total size of all volumes of one workspace; 0 is no limit",
    },
    Key {
        name: "sandboxes.templates_per_workspace",
        environment: &[],
        default: Fallback::Text("200"),
        kind: Kind::Count {
            least: 0,
            most: 1_000_000,
        },
        about: "templates of sandboxes of one workspace; 0 is no limit",
    },
    Key {
        name: "sandboxes.pools_per_workspace",
        environment: &[],
        default: Fallback::Text("100"),
        kind: Kind::Count {
            least: 0,
            most: 1_000_000,
        },
        about: "pools of sandboxes of one workspace; 0 is no limit",
    },
    Key {
        name: "sandboxes.registries_per_workspace",
        environment: &[],
        default: Fallback::Text("100"),
        kind: Kind::Count { least: 1, most: 1_000 },
        about: "registries of sandbox images of one workspace",
    },
];
