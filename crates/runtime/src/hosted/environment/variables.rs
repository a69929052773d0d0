//! The environment variables that package managers get. Packages run code while they are installed, so only variables
//! about packages are passed on.

use std::collections::BTreeMap;
use std::path::PathBuf;

use towpath_domain::Secret;

use super::spec::EnvironmentSpec;

/// About the machine: they say where things are, and not which.
const PLACES: [&str; 17] = [
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "PATH",
    "PIP_CACHE_DIR",
    "SSH_AUTH_SOCK",
    "TMPDIR",
    "TZ",
    "USER",
    "UV_CACHE_DIR",
    "UV_PYTHON_INSTALL_DIR",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    // Processes that a deployment left running are identified by these.
    "_TOWPATH_ROOT",
    "_TOWPATH_RUN",
];
/// Variables that affect what is installed: package sources, certificates, and compilation.
const DECIDING: [&str; 26] = [
    "ALL_PROXY",
    "CC",
    "CFLAGS",
    "CPPFLAGS",
    "CURL_CA_BUNDLE",
    "CXX",
    "CXXFLAGS",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "LDFLAGS",
    "LD_LIBRARY_PATH",
    "NETRC",
    "NO_PROXY",
    "PKG_CONFIG_PATH",
    "PYENV_ROOT",
    "PYENV_VERSION",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "XDG_CONFIG_HOME",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];
/// Settings of pip and of uv.
const PREFIXES: [&str; 2] = ["PIP_", "UV_"];

/// Variables of a package manager.
#[derive(Clone, Debug)]
pub(super) struct Variables(BTreeMap<String, Secret>);

impl Variables {
    /// The process's variables about packages, and the project's settings for pip.
    pub(super) fn of(wanted: &EnvironmentSpec, process: &BTreeMap<String, Secret>) -> Self {
        let passed = |name: &str| PLACES.contains(&name) || decides(name);
        let passed = process.iter().filter(|(name, _)| passed(name));
        let mut variables: BTreeMap<String, Secret> =
            passed.map(|(name, value)| (name.clone(), value.clone())).collect();
        if let Some(file) = &wanted.pip_config {
            let file = wanted.folder.join(file).display().to_string();
            variables.insert("PIP_CONFIG_FILE".to_owned(), Secret::new(file));
        }
        // A hard link to a file of the cache could be used to change the cache.
        variables.insert("UV_LINK_MODE".to_owned(), Secret::new("copy"));
        Self(variables)
    }

    /// These, and another one for a single call.
    pub(super) fn with(&self, name: &str, value: &str) -> Self {
        let mut all = self.clone();
        all.0.insert(name.to_owned(), Secret::new(value));
        all
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(Secret::reveal)
    }

    /// Where programs are looked for.
    pub(super) fn path(&self) -> &str {
        self.get("PATH").unwrap_or("/usr/local/bin:/usr/bin:/bin")
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.reveal()))
    }

    /// Variables that determine what is installed. For files their content counts, see [`Variables::files`].
    pub(super) fn deciding(&self) -> impl Iterator<Item = (&str, &str)> {
        let is_file = |name: &str| matches!(name, "PIP_CONFIG_FILE" | "UV_CONFIG_FILE" | "XDG_CONFIG_HOME");
        self.all().filter(move |(name, _)| decides(name) && !is_file(name))
    }

    /// Configuration files of pip and uv, whether they exist or not.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let home = self.get("HOME").map(PathBuf::from);
        let config = self.get("XDG_CONFIG_HOME").map(PathBuf::from);
        let config = config.or_else(|| Some(home.as_ref()?.join(".config")));
        let mut files: Vec<PathBuf> = [
            "/etc/pip.conf",
            "/etc/xdg/pip/pip.conf",
            "/etc/uv/uv.toml",
            "/etc/xdg/uv/uv.toml",
        ]
        .map(PathBuf::from)
        .to_vec();
        files.extend(home.map(|home| home.join(".pip/pip.conf")));
        files.extend(config.iter().map(|config| config.join("pip/pip.conf")));
        files.extend(config.iter().map(|config| config.join("uv/uv.toml")));
        let named = ["PIP_CONFIG_FILE", "UV_CONFIG_FILE", "NETRC"].map(|name| self.get(name));
        files.extend(named.into_iter().flatten().map(PathBuf::from));
        files
    }
}

fn decides(name: &str) -> bool {
    DECIDING.contains(&name) || (PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && !PLACES.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_about_packages_is_passed_on() {
        let wanted = EnvironmentSpec {
            folder: PathBuf::from("/project"),
            dependencies: Vec::new(),
            version: None,
            pip_config: Some("pip.conf".to_owned()),
            uv: None,
            workspace: None,
        };
        let names = [
            "PATH",
            "UV_CACHE_DIR",
            "UV_INDEX_URL",
            "HTTPS_PROXY",
            "GIT_SSL_CAINFO",
            "GIT_CONFIG_COUNT",
            "OPENAI_API_KEY",
            "PYTHONPATH",
            "PIPE",
        ];
        let process = names.map(|name| (name.to_owned(), Secret::new("x")));
        let variables = Variables::of(&wanted, &BTreeMap::from(process));
        let all: Vec<_> = variables.all().collect();
        assert_eq!(
            all,
            [
                ("GIT_SSL_CAINFO", "x"),
                ("HTTPS_PROXY", "x"),
                ("PATH", "x"),
                ("PIP_CONFIG_FILE", "/project/pip.conf"),
                ("UV_CACHE_DIR", "x"),
                ("UV_INDEX_URL", "x"),
                ("UV_LINK_MODE", "copy"),
            ]
        );
        let deciding: Vec<_> = variables.deciding().map(|(name, _)| name).collect();
        assert_eq!(
            deciding,
            ["GIT_SSL_CAINFO", "HTTPS_PROXY", "UV_INDEX_URL", "UV_LINK_MODE"]
        );
        assert!(variables.files().contains(&PathBuf::from("/project/pip.conf")));
    }
}
