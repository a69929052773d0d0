use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::metadata::ParquetMetaData;
use towpath_domain::export::FormatVersion;
use towpath_domain::{ExportId, ExportRunId, Timestamp, TraceRunId};
use towpath_traces::columnar::Error;
use towpath_traces::hive::{self, Prefix};
use towpath_traces::manifest::{self, Manifest, Partition};
use towpath_traces::operation::Verb;
use towpath_traces::parquet_file::{Compression, End, FileOptions, FileWritten, RowSource, file_name, write_file};
use towpath_traces::row::Key;
use towpath_traces::scan::Request;
use towpath_traces::schema::Selection;
use uuid::Uuid;

use super::generate::{Random, operations};
use super::shown;
use super::world::{PROJECT, TENANT, World, time};

const RUN: ExportRunId = ExportRunId(Uuid::from_u128(0xdddd));

async fn world() -> World {
    World::of(operations(21, 4000, time("2026-05-01"), time("2026-05-02")), 5, 21).await
}

fn options(compression: Compression) -> FileOptions {
    // Small files of several parts each.
    FileOptions {
        file_bytes: 300_000,
        part_bytes: 100_000,
        ..FileOptions::new(Selection::all(), compression)
    }
}

fn path(seq: u32) -> Path {
    Path::from("out").join(file_name(RUN, seq))
}

async fn export(world: &World, options: &FileOptions, folder: &str) -> Vec<FileWritten> {
    let request = Request {
        selection: options.selection.clone(),
        ..world.request()
    };
    let mut feed = RowSource::new(world.scan(request));
    let mut written = Vec::new();
    loop {
        let path = Path::from(folder).join(file_name(RUN, written.len() as u32));
        let sealed = write_file(&mut feed, world.store.clone(), path, options, End::Roll, &mut |_| {})
            .await
            .unwrap();
        match sealed {
            Some(sealed) => written.push(sealed.complete().await.unwrap()),
            None => return written,
        }
    }
}

fn read(bytes: bytes::Bytes) -> (Arc<ParquetMetaData>, Vec<RecordBatch>) {
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes).unwrap();
    let metadata = reader.metadata().clone();
    (metadata, reader.build().unwrap().map(Result::unwrap).collect())
}

#[tokio::test]
async fn files_hold_every_row_in_every_compression() {
    use parquet::basic::Compression as Codec;
    let world = world().await;
    let whole: Vec<_> = world
        .read(world.request())
        .await
        .iter()
        .flat_map(|batch| shown::rows(&batch.rows))
        .collect();
    for compression in [
        Compression::None,
        Compression::Gzip,
        Compression::Snappy,
        Compression::Zstandard,
    ] {
        let files = export(&world, &options(compression), &format!("{compression:?}")).await;
        assert!(files.len() > 1, "{compression:?} gave {} file", files.len());
        let mut found = Vec::new();
        for file in &files {
            let bytes = world.bytes(&file.path).await;
            assert_eq!(bytes.len() as u64, file.bytes);
            assert_eq!(crc32fast::hash(&bytes), file.checksum);
            let (metadata, batches) = read(bytes);
            let codec = metadata.row_group(0).column(0).compression();
            assert!(match compression {
                Compression::None => codec == Codec::UNCOMPRESSED,
                Compression::Gzip => matches!(codec, Codec::GZIP(_)),
                Compression::Snappy => codec == Codec::SNAPPY,
                Compression::Zstandard => matches!(codec, Codec::ZSTD(_)),
            });
            let rows: Vec<_> = batches.iter().flat_map(shown::rows).collect();
            assert_eq!(rows.len() as u64, file.rows);
            assert_eq!(rows.last().unwrap()["id"], file.last.id.to_string());
            found.extend(rows);
        }
        assert!(found == whole, "{compression:?}");
    }
}

#[tokio::test]
async fn a_file_says_its_types_in_plain_parquet() {
    let world = world().await;
    let files = export(&world, &options(Compression::Zstandard), "types").await;
    let (metadata, batches) = read(world.bytes(&files[0].path).await);
    let schema = metadata.file_metadata().schema_descr();
    let type_of = |name: &str| {
        let column = schema
            .columns()
            .iter()
            .find(|column| column.path().string() == name)
            .unwrap_or_else(|| panic!("{name}"));
        format!("{:?} {:?}", column.physical_type(), column.logical_type_ref())
    };
    assert!(type_of("start_time").starts_with("INT64 Some(Timestamp"));
    assert!(
        type_of("start_time").contains("is_adjusted_to_u_t_c: false"),
        "{}",
        type_of("start_time")
    );
    assert_eq!(type_of("inputs"), "BYTE_ARRAY Some(String)");
    assert_eq!(type_of("tags.list.element"), "BYTE_ARRAY Some(String)");
    assert!(
        type_of("total_cost").contains("scale: 10, precision: 20"),
        "{}",
        type_of("total_cost")
    );
    assert_eq!(metadata.file_metadata().key_value_metadata(), None);
    assert_eq!(batches[0].schema().fields().len(), 29);
}

#[tokio::test]
async fn fewer_fields_give_only_those() {
    let world = world().await;
    let selection = Selection::of(&["outputs", "id", "tags"]).unwrap();
    let files = export(
        &world,
        &FileOptions {
            selection,
            ..options(Compression::Snappy)
        },
        "few",
    )
    .await;
    let (_, batches) = read(world.bytes(&files[0].path).await);
    let schema = batches[0].schema();
    assert_eq!(
        schema
            .fields()
            .iter()
            .map(|field| field.name().as_str())
            .collect::<Vec<_>>(),
        ["id", "outputs", "tags"]
    );
}

#[tokio::test]
async fn a_file_made_again_has_the_same_bytes() {
    let world = world().await;
    let options = options(Compression::Zstandard);
    let files = export(&world, &options, "first").await;
    assert!(files.len() > 2);
    let mut after = None;
    for file in &files {
        let request = Request {
            after,
            ..world.request()
        };
        for end in [End::At(file.last), End::Roll] {
            let mut feed = RowSource::new(world.scan(request.clone()));
            let sealed = write_file(&mut feed, world.store.clone(), path(0), &options, end, &mut |_| {})
                .await
                .unwrap()
                .unwrap();
            let again = sealed.complete().await.unwrap();
            assert_eq!(
                FileWritten {
                    path: file.path.clone(),
                    ..again
                },
                *file
            );
            assert!(world.bytes(&path(0)).await == world.bytes(&file.path).await, "{end:?}");
        }
        after = Some(file.last);
    }
}

/// Rows of several pages a column, cut into other batches by another number of segments.
#[tokio::test]
async fn the_same_rows_out_of_other_segments_give_the_same_bytes() {
    let mut random = Random::new(22);
    let mut operations = operations(22, 3000, time("2026-05-01"), time("2026-05-02"));
    for operation in &mut operations {
        if operation.verb == Verb::Post {
            let words: String = (0..300).map(|_| format!("{:x} ", random.next())).collect();
            operation.fields.inputs = Some(format!("\"{words}\""));
        }
    }
    for compression in [Compression::None, Compression::Zstandard] {
        let options = FileOptions::new(Selection::all(), compression);
        let mut made = Vec::new();
        for folds in [1, 7] {
            let world = World::of(operations.clone(), folds, 22).await;
            let files = export(&world, &options, "one").await;
            assert_eq!((files.len(), files[0].rows), (1, 3000));
            let cuts: Vec<_> = world
                .read(world.request())
                .await
                .iter()
                .map(|batch| batch.keys.len())
                .collect();
            made.push((cuts, world.bytes(&files[0].path).await));
        }
        assert_ne!(made[0].0, made[1].0, "the batches were to differ");
        assert!(made[0].1 == made[1].1, "{compression:?}");
    }
}

#[tokio::test]
async fn a_file_made_again_never_ends_by_size() {
    let world = world().await;
    let order = super::world::keys(&world.read(world.request()).await);
    let target = order[order.len() - 10];
    let mut feed = RowSource::new(world.scan(world.request()));
    let end = End::At(target);
    let sealed = write_file(
        &mut feed,
        world.store.clone(),
        path(0),
        &options(Compression::None),
        end,
        &mut |_| {},
    )
    .await;
    let written = sealed.unwrap().unwrap().complete().await.unwrap();
    assert_eq!((written.rows as usize, written.last), (order.len() - 9, target));
    // What comes after was not lost.
    let rest = write_file(
        &mut feed,
        world.store.clone(),
        path(1),
        &options(Compression::None),
        End::Roll,
        &mut |_| {},
    )
    .await;
    assert_eq!(rest.unwrap().unwrap().written().rows, 9);
}

#[tokio::test]
async fn other_rows_than_recorded_are_refused() {
    let world = world().await;
    let order = super::world::keys(&world.read(world.request()).await);
    let unknown = Key {
        id: TraceRunId::nil(),
        ..order[order.len() / 2]
    };
    let beyond = Key {
        sort_time: Timestamp::from_micros(i64::MAX),
        ..unknown
    };
    for target in [unknown, beyond] {
        let mut feed = RowSource::new(world.scan(world.request()));
        let options = options(Compression::None);
        let refused = write_file(
            &mut feed,
            world.store.clone(),
            path(0),
            &options,
            End::At(target),
            &mut |_| {},
        )
        .await;
        assert!(matches!(refused, Err(Error::Diverged(_))));
    }
    assert_eq!(world.objects().await, Vec::<String>::new());
}

#[tokio::test]
async fn no_rows_make_no_file_and_progress_is_told() {
    let world = world().await;
    let request = Request {
        range: time("2026-08-01")..time("2026-09-01"),
        ..world.request()
    };
    let mut feed = RowSource::new(world.scan(request));
    let options = FileOptions::new(Selection::all(), Compression::Zstandard);
    let none = write_file(
        &mut feed,
        world.store.clone(),
        path(0),
        &options,
        End::Roll,
        &mut |_| {},
    )
    .await
    .unwrap();
    assert!(none.is_none());
    let mut told = Vec::new();
    let mut feed = RowSource::new(world.scan(world.request()));
    let sealed = write_file(
        &mut feed,
        world.store.clone(),
        path(0),
        &options,
        End::Roll,
        &mut |progress| told.push(progress),
    )
    .await;
    let written = sealed.unwrap().unwrap().written();
    assert!(
        told.len() >= 3 && told.is_sorted_by_key(|progress| progress.rows),
        "{told:?}"
    );
    assert!(
        told.iter()
            .all(|progress| progress.bytes > 0 && progress.rows <= written.rows)
    );
}

#[tokio::test]
async fn rows_decide_about_the_end_too() {
    let world = world().await;
    let options = FileOptions {
        file_rows: 1500,
        file_bytes: u64::MAX,
        ..options(Compression::Snappy)
    };
    let rows: Vec<_> = export(&world, &options, "rows")
        .await
        .iter()
        .map(|file| file.rows)
        .collect();
    assert_eq!(rows, [2048, 1952], "rows are counted in chunks of 1024");
}

#[tokio::test]
async fn nothing_is_visible_before_complete_and_nothing_is_left_of_an_abort() {
    let world = world().await;
    let folder = tempfile::tempdir().unwrap();
    let local: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    let files = || walk(folder.path());
    let options = options(Compression::Snappy);
    let seal = async |path: Path| {
        let mut feed = RowSource::new(world.scan(world.request()));
        write_file(&mut feed, local.clone(), path, &options, End::Roll, &mut |_| {})
            .await
            .unwrap()
            .unwrap()
    };
    let sealed = seal(path(0)).await;
    assert!(local.head(&path(0)).await.is_err());
    sealed.abort().await;
    assert_eq!(files(), Vec::<String>::new());
    let written = seal(path(1)).await.complete().await.unwrap();
    assert_eq!(local.head(&path(1)).await.unwrap().size, written.bytes);
    assert_eq!(files().len(), 1);
    let listed: Vec<_> = local.list(None).try_collect().await.unwrap();
    assert_eq!(listed.len(), 1);
    // A destination that can't take the file says which key was tried.
    std::fs::write(folder.path().join("plain"), b"a file where a folder has to be").unwrap();
    let mut feed = RowSource::new(world.scan(world.request()));
    let blocked = Path::from("plain/file.parquet");
    let refused = write_file(&mut feed, local.clone(), blocked, &options, End::Roll, &mut |_| {})
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("plain/file.parquet"), "{refused}");
}

fn walk(folder: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.path().is_dir() {
            found.extend(walk(&entry.path()));
        } else {
            found.push(entry.path().display().to_string());
        }
    }
    found
}

#[tokio::test]
async fn the_manifest_lists_what_was_written() {
    let world = world().await;
    let export_id = ExportId(Uuid::from_u128(0xeeee));
    let prefix = Prefix::new("a/b").unwrap();
    let day = time("2026-05-01").day();
    let folder = prefix.partition(FormatVersion::V1, export_id, TENANT, PROJECT, day);
    let files = export(&world, &options(Compression::Zstandard), folder.as_ref()).await;
    assert_eq!(files[1].path, hive::file(&folder, &file_name(RUN, 1)));
    let listed = files.iter().map(|file| manifest::File {
        path: file.path.to_string(),
        rows: file.rows,
        bytes: file.bytes,
    });
    let partition = Partition::of(RUN, day, &folder, listed.collect());
    let manifest = Manifest {
        version: manifest::VERSION,
        export_id,
        tenant_id: TENANT,
        session_id: PROJECT,
        start_time: time("2026-05-01"),
        end_time: time("2026-05-02"),
        fields: Selection::all().names().map(ToOwned::to_owned).collect(),
        format: "Parquet".to_owned(),
        format_version: FormatVersion::V1,
        compression: Compression::Zstandard,
        filter: None,
        missing_operations: 3,
        rows: 0,
        bytes: 0,
        partitions: Vec::new(),
        finished_at: time("2026-05-03"),
    }
    .with_partitions(vec![partition]);
    assert_eq!(manifest.rows, 4000);
    let path = prefix.manifest(export_id);
    manifest.write(&world.store, &path).await.unwrap();
    let text = world.bytes(&path).await;
    assert_eq!(serde_json::from_slice::<Manifest>(&text).unwrap(), manifest);
    let shape: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(shape["compression"], "zstandard");
    assert_eq!(shape["missing_operations"], 3);
    assert_eq!(shape["partitions"][0]["day"], "2026-05-01");
    assert!(path.as_ref().starts_with("a/b/export_id="));
}
