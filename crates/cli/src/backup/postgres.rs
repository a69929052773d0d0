//! A PostgreSQL database, dumped and loaded by the tools of PostgreSQL, which must be on the path.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, bail};
use tokio::process::Command;
use towpath_store::backup::{self as copies, Contents};
use towpath_store::migrations::Schema;
use url::Url;

use crate::exit::Usage;

/// Dumps a consistent snapshot of the database and returns its contents.
pub(super) async fn dump(uri: &str, to: &Path) -> anyhow::Result<Contents> {
    super::files::remove(to)?;
    let moment = copies::postgres_snapshot(uri).await.context("opening the database")?;
    let mut command = tool("pg_dump", uri)?;
    command
        .args(["--format=custom", "--no-owner", "--no-privileges"])
        // Copies of what other tables have, which are made again.
        .arg("--exclude-table=item_vector_hnsw_*")
        .arg(format!("--snapshot={}", moment.snapshot))
        .arg("--file")
        .arg(to);
    run("pg_dump", command).await?;
    let contents = moment.contents.clone();
    moment.close().await;
    Ok(contents)
}

pub(super) async fn load(uri: &str, from: &Path) -> anyhow::Result<()> {
    let mut command = tool("pg_restore", uri)?;
    let mut variables = variables(&parse(uri)?);
    // PostgreSQL's default database has the name of the user.
    let database = variables.remove("PGDATABASE").or_else(|| variables.remove("PGUSER"));
    command
        .args([
            "--no-owner",
            "--no-privileges",
            "--exit-on-error",
            "--single-transaction",
        ])
        .arg("--dbname")
        .arg(database.unwrap_or_default())
        .arg(from);
    run("pg_restore", command).await
}

pub(super) fn expect_empty(schema: &Schema) -> anyhow::Result<()> {
    if !schema.applied.is_empty() {
        bail!(Usage(
            "the database is not empty; restore into one that was made for it (createdb), before any server or \
             towpath migrate has used it"
                .to_owned()
        ));
    }
    Ok(())
}

/// A tool gets the address in its environment, because arguments are visible to all users of the machine.
fn tool(program: &str, uri: &str) -> anyhow::Result<Command> {
    let mut command = Command::new(program);
    // These variables would override the address.
    command.env_remove("PGSERVICE").env_remove("PGHOSTADDR");
    command.envs(variables(&parse(uri)?)).stdin(std::process::Stdio::null());
    Ok(command)
}

/// The parts of an address as the variables of PostgreSQL's programs. A query parameter overrides an earlier part of
/// the address, and a later parameter overrides it, as in the server.
fn variables(uri: &Url) -> BTreeMap<&'static str, String> {
    let decoded = |text: &str| {
        percent_encoding::percent_decode_str(text)
            .decode_utf8_lossy()
            .into_owned()
    };
    let mut variables = BTreeMap::new();
    if let Some(host) = uri.host_str().filter(|host| !host.is_empty()) {
        variables.insert("PGHOST", decoded(host).trim_matches(['[', ']']).to_owned());
    }
    if let Some(port) = uri.port() {
        variables.insert("PGPORT", port.to_string());
    }
    if !uri.username().is_empty() {
        variables.insert("PGUSER", decoded(uri.username()));
    }
    if let Some(password) = uri.password() {
        variables.insert("PGPASSWORD", decoded(password));
    }
    let database = decoded(uri.path().trim_start_matches('/'));
    if !database.is_empty() {
        variables.insert("PGDATABASE", database);
    }
    let mut options: Vec<String> = Vec::new();
    for (key, value) in uri.query_pairs() {
        let variable = match &*key {
            "sslmode" | "ssl-mode" => "PGSSLMODE",
            "sslrootcert" | "ssl-root-cert" | "ssl-ca" => "PGSSLROOTCERT",
            "sslcert" | "ssl-cert" => "PGSSLCERT",
            "sslkey" | "ssl-key" => "PGSSLKEY",
            "host" | "hostaddr" => "PGHOST",
            "port" => "PGPORT",
            "dbname" => "PGDATABASE",
            "user" => "PGUSER",
            "password" => "PGPASSWORD",
            "application_name" => "PGAPPNAME",
            "options" => {
                options.push(value.into_owned());
                continue;
            }
            key => {
                let named = key.strip_prefix("options[").and_then(|key| key.strip_suffix(']'));
                options.extend(named.map(|name| format!("-c {name}={value}")));
                continue;
            }
        };
        variables.insert(variable, value.into_owned());
    }
    if !options.is_empty() {
        variables.insert("PGOPTIONS", options.join(" "));
    }
    variables
}

fn parse(uri: &str) -> anyhow::Result<Url> {
    // The parse error may contain the password.
    Url::parse(uri).map_err(|_| Usage("database_uri: expected postgres://user@host/database".to_owned()).into())
}

async fn run(program: &str, mut command: Command) -> anyhow::Result<()> {
    let done = match command.output().await {
        Err(why) if why.kind() == ErrorKind::NotFound => {
            bail!(
                "{program} is not on the path; install the PostgreSQL client programs, of the server's version or a \
                 newer one"
            )
        }
        done => done.with_context(|| program.to_owned())?,
    };
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!("{program} failed: {}", said.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uri: &str) -> BTreeMap<&'static str, String> {
        variables(&parse(uri).unwrap())
    }

    #[test]
    fn tools_get_all_that_the_address_says() {
        let found = of(
            "postgres://first:p%40ss@[::1]:5433/one?sslmode=verify-full&sslrootcert=/ca.pem&sslcert=/c.pem\
             &sslkey=/k.pem&options=-c%20search_path%3Dx&options[statement_timeout]=0&application_name=copy",
        );
        let expected = [
            ("PGHOST", "::1"),
            ("PGPORT", "5433"),
            ("PGUSER", "first"),
            ("PGPASSWORD", "p@ss"),
            ("PGDATABASE", "one"),
            ("PGSSLMODE", "verify-full"),
            ("PGSSLROOTCERT", "/ca.pem"),
            ("PGSSLCERT", "/c.pem"),
            ("PGSSLKEY", "/k.pem"),
            ("PGOPTIONS", "-c search_path=x -c statement_timeout=0"),
            ("PGAPPNAME", "copy"),
        ];
        assert_eq!(
            found,
            BTreeMap::from(expected.map(|(name, value)| (name, value.to_owned())))
        );
    }

    #[test]
    fn parameters_count_for_more_than_the_address_before_them() {
        let found =
            of("postgres://first@here:5433/one?host=/run/postgresql&port=5434&dbname=two&user=second&password=x");
        let expected = [
            ("PGHOST", "/run/postgresql"),
            ("PGPORT", "5434"),
            ("PGUSER", "second"),
            ("PGPASSWORD", "x"),
            ("PGDATABASE", "two"),
        ];
        assert_eq!(
            found,
            BTreeMap::from(expected.map(|(name, value)| (name, value.to_owned())))
        );
    }
}
