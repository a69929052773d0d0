//! A PostgreSQL database, by the tools of PostgreSQL, which have to be on the path.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, bail};
use tokio::process::Command;
use towpath_store::{Options, Store, backup as copies, migrations};
use url::Url;

use crate::exit::Usage;

/// Writes the database as it is at one moment; the objects that it names then.
pub(super) async fn dump(uri: &str, to: &Path) -> anyhow::Result<Vec<String>> {
    super::files::remove(to)?;
    let moment = copies::postgres_moment(uri).await.context("opening the database")?;
    let mut command = tool("pg_dump", uri)?;
    command
        .args(["--format=custom", "--no-owner", "--no-privileges"])
        .arg(format!("--snapshot={}", moment.snapshot))
        .arg("--file")
        .arg(to);
    run("pg_dump", command).await?;
    let named = moment.objects.clone();
    moment.close().await;
    Ok(named)
}

/// Fills an empty database.
pub(super) async fn load(uri: &str, from: &Path) -> anyhow::Result<()> {
    let mut command = tool("pg_restore", uri)?;
    command
        .args([
            "--no-owner",
            "--no-privileges",
            "--exit-on-error",
            "--single-transaction",
        ])
        .arg("--dbname")
        .arg(name(&parse(uri)?))
        .arg(from);
    run("pg_restore", command).await
}

/// # Errors
/// Wrong usage, when there is something of ours in it.
pub(super) async fn expect_empty(uri: &str) -> anyhow::Result<()> {
    let store = Store::open(uri, Options::default())
        .await
        .context("opening the database")?;
    let schema = migrations::schema(&store).await.context("opening the database")?;
    store.close().await;
    if !schema.applied.is_empty() {
        bail!(Usage(
            "the database is not empty; restore into one that was made for it (createdb), before any server or \
             towpath migrate has used it"
                .to_owned()
        ));
    }
    Ok(())
}

/// A tool that finds the database by its environment: what stands in its arguments everybody on the machine can read.
fn tool(program: &str, uri: &str) -> anyhow::Result<Command> {
    let uri = parse(uri)?;
    let decoded = |text: &str| {
        percent_encoding::percent_decode_str(text)
            .decode_utf8_lossy()
            .into_owned()
    };
    let mut command = Command::new(program);
    if let Some(host) = uri.host_str() {
        command.env("PGHOST", decoded(host).trim_matches(['[', ']']));
    }
    if let Some(port) = uri.port() {
        command.env("PGPORT", port.to_string());
    }
    if !uri.username().is_empty() {
        command.env("PGUSER", decoded(uri.username()));
    }
    if let Some(password) = uri.password() {
        command.env("PGPASSWORD", decoded(password));
    }
    for (key, value) in uri.query_pairs() {
        let variable = match &*key {
            "sslmode" => "PGSSLMODE",
            "sslrootcert" => "PGSSLROOTCERT",
            "host" => "PGHOST",
            _ => continue,
        };
        command.env(variable, &*value);
    }
    command.env("PGDATABASE", name(&uri)).stdin(std::process::Stdio::null());
    Ok(command)
}

fn parse(uri: &str) -> anyhow::Result<Url> {
    // What is wrong with it may hold the password.
    Url::parse(uri).map_err(|_| Usage("database_uri: expected postgres://user@host/database".to_owned()).into())
}

fn name(uri: &Url) -> String {
    percent_encoding::percent_decode_str(uri.path().trim_start_matches('/'))
        .decode_utf8_lossy()
        .into_owned()
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
