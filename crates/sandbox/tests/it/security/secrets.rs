//! Secrets of other commands and of the platform. A command of root with a secret in its variables runs meanwhile.

use super::case::{Case, accepted, blocked};

pub const CASES: &[Case] = &[
    blocked(
        "variables of a command of root",
        "seen = b'OF_ROOT=hidden' in everything('environ')",
        "False",
    )
    .as_root("True"),
    blocked(
        "arguments of a command of root",
        "seen = b'argument-of-root' in everything('cmdline')",
        "False",
    )
    .as_root("True"),
    blocked(
        "what the agent was told at its start",
        "read('/run/towpath/box.json')",
        "EACCES",
    )
    .as_root("done"),
    blocked(
        "core dumps",
        "os.chdir('/tmp')\n\
         seen = child(os.abort), [name for name in os.listdir('.') if 'core' in name]",
        "('signal 6', [])",
    ),
    blocked(
        "core dumps by a higher limit",
        "resource.setrlimit(resource.RLIMIT_CORE, (1, 1 << 30))",
        "ValueError",
    ),
    accepted(
        "variables of the box in every command",
        "seen = os.environ['OF_BOX']",
        "known",
        "`env_vars` of a box are for all of its commands; secrets belong into rules of the proxy, which stay outside",
    ),
];
