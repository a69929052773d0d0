//! Copies files into and out of a sandbox.

use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use reqwest::{Body, Response};
use serde_json::json;
use tokio::io::AsyncRead;
use tokio_util::io::ReaderStream;
use uuid::Uuid;

use super::super::client::Client;
use super::super::print;
use super::data_path;
use crate::arguments::Output;
use crate::arguments::remote::CopyPath;
use crate::exit::{CommandExit, PIPE_CLOSED, Usage};

pub async fn run(client: &Client, from: CopyPath, to: CopyPath, output: Output) -> anyhow::Result<()> {
    match (from, to) {
        (CopyPath::Remote { sandbox, path }, to @ (CopyPath::Local(_) | CopyPath::Stdio)) => {
            download(client, &sandbox, &path, &to, output).await
        }
        (from @ (CopyPath::Local(_) | CopyPath::Stdio), CopyPath::Remote { sandbox, path }) => {
            upload(client, &from, &sandbox, &path, output).await
        }
        (CopyPath::Remote { .. }, CopyPath::Remote { .. }) => {
            let text = "source and target are both in sandboxes; copy through -: \
                        towpath sandbox cp A:PATH - | towpath sandbox cp - B:PATH";
            Err(Usage(text.to_owned()).into())
        }
        _ => Err(Usage("source or target must be in a sandbox, as in NAME:PATH".to_owned()).into()),
    }
}

/// The file name at the end of a path; `None` for a folder.
fn name(path: &str) -> Option<&str> {
    path.rsplit('/')
        .next()
        .filter(|name| !name.is_empty() && !matches!(*name, "." | ".."))
}

/// The path of an upload. In a folder the file keeps its local name.
fn target(from: &CopyPath, to: &str) -> anyhow::Result<String> {
    if name(to).is_some() {
        return Ok(to.to_owned());
    }
    let own = match from {
        CopyPath::Local(file) => file.file_name().and_then(|name| name.to_str()),
        _ => None,
    };
    match own {
        Some(own) if to.is_empty() || to.ends_with('/') => Ok(format!("{to}{own}")),
        Some(own) => Ok(format!("{to}/{own}")),
        None => Err(Usage("name the file in the sandbox too, as in NAME:PATH/FILE".to_owned()).into()),
    }
}

async fn upload(client: &Client, from: &CopyPath, sandbox: &str, to: &str, output: Output) -> anyhow::Result<()> {
    let to = target(from, to)?;
    let data = data_path(client, sandbox).await?;
    let path = format!("{data}/upload");
    let query = [("path", to)];
    let boundary = format!("towpath-{}", Uuid::now_v7().simple());
    let kind = format!("multipart/form-data; boundary={boundary}");
    let body = match from {
        CopyPath::Local(file) => form(&boundary, open(file).await?),
        _ => form(&boundary, standard_input()?),
    };
    let answer = client.upload(&path, &query, &kind, body).await?;
    match output {
        Output::Json => print::json(&answer),
        Output::Table => eprintln!(
            "wrote {} bytes to {sandbox}:{}",
            print::text(&answer["size_bytes"]),
            print::text(&answer["path"])
        ),
    }
    Ok(())
}

/// Standard input, read without a thread that outlives the command.
fn standard_input() -> anyhow::Result<tokio::fs::File> {
    let own = io::stdin().as_fd().try_clone_to_owned().context("standard input")?;
    Ok(tokio::fs::File::from_std(own.into()))
}

async fn open(file: &Path) -> anyhow::Result<tokio::fs::File> {
    let shown = file.display();
    let opened = tokio::fs::File::open(file).await.with_context(|| format!("{shown}"))?;
    if opened.metadata().await.with_context(|| format!("{shown}"))?.is_dir() {
        bail!("{shown} is a folder; pack it: tar -c {shown} | …, or copy its files");
    }
    Ok(opened)
}

/// A multipart body that streams one file.
fn form(boundary: &str, file: impl AsyncRead + Send + 'static) -> Body {
    let head = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"file\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    let tail = format!("\r\n--{boundary}--\r\n");
    let part = |text: String| stream::iter([Ok::<Bytes, io::Error>(text.into())]);
    Body::wrap_stream(part(head).chain(ReaderStream::new(file)).chain(part(tail)))
}

async fn download(client: &Client, sandbox: &str, path: &str, to: &CopyPath, output: Output) -> anyhow::Result<()> {
    let Some(own) = name(path) else {
        return Err(Usage(format!("{sandbox}:{path} is a folder; name a file in it")).into());
    };
    let data = data_path(client, sandbox).await?;
    let answer = client
        .stream(&format!("{data}/download"), &[("path", path.to_owned())])
        .await?;
    let CopyPath::Local(to) = to else {
        return print_to_stdout(answer).await;
    };
    let to = if to.is_dir() { to.join(own) } else { to.clone() };
    let count = save(answer, &to).await?;
    match output {
        Output::Json => print::json(&json!({"path": to.display().to_string(), "size_bytes": count})),
        Output::Table => eprintln!("wrote {count} bytes to {}", to.display()),
    }
    Ok(())
}

async fn print_to_stdout(answer: Response) -> anyhow::Result<()> {
    let mut pieces = answer.bytes_stream();
    let mut out = io::stdout().lock();
    while let Some(piece) = pieces.next().await {
        let piece = piece.context("the connection broke")?;
        if let Err(error) = out.write_all(&piece) {
            return match error.kind() {
                io::ErrorKind::BrokenPipe => Err(CommandExit(PIPE_CLOSED).into()),
                _ => Err(error).context("standard output"),
            };
        }
    }
    out.flush().context("standard output")
}

/// Writes the file atomically.
async fn save(answer: Response, to: &Path) -> anyhow::Result<u64> {
    let shown = to.display().to_string();
    let folder = match to.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let partial = tempfile::Builder::new()
        .prefix(".towpath-")
        // The umask applies.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .with_context(|| shown.clone())?;
    let mut count = 0;
    let mut pieces = answer.bytes_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.context("the connection broke, and the file is not written")?;
        partial.as_file().write_all(&piece).with_context(|| shown.clone())?;
        count += piece.len() as u64;
    }
    partial.persist(to).with_context(|| shown.clone())?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_to_a_folder_keeps_the_file_name() {
        let local = CopyPath::Local("notes/a.txt".into());
        for (to, expected) in [
            ("", "a.txt"),
            ("/tmp/", "/tmp/a.txt"),
            (".", "./a.txt"),
            ("..", "../a.txt"),
            ("b", "b"),
            ("/tmp/b", "/tmp/b"),
        ] {
            assert_eq!(target(&local, to).unwrap(), expected, "{to}");
        }
        assert!(target(&CopyPath::Stdio, "/tmp/").unwrap_err().is::<Usage>());
        assert_eq!(target(&CopyPath::Stdio, "b").unwrap(), "b");
    }

    #[test]
    fn folders_have_no_file_name() {
        assert_eq!(name("/a/b"), Some("b"));
        for folder in ["", "/", "a/", "a/..", "."] {
            assert_eq!(name(folder), None, "{folder}");
        }
    }
}
