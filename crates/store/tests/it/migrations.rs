//! The schema: one for both databases, frozen, and refused where another build made it.

pub mod filled;
mod raw;

use sqlx::SqlSafeStr as _;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use towpath_store::{Error, migrations};

pub use self::raw::{EmptyDatabase, RawConnection};

pub static SQLITE: Migrator = sqlx::migrate!("migrations/sqlite");
pub static POSTGRES: Migrator = sqlx::migrate!("migrations/postgres");

/// Every pair: its name, and the SHA-384 of both files as `sha384sum` prints it.
const FROZEN: [(&str, &str, &str); 28] = [
    (
        "0001_schema",
        "c4db30111ae96418f211e34839f1381a5261911e2abfa72dac41ba95d3590445d75a798854843b8b9665375088877b90",
        "d29c2b5ff15427719ec9d7cb84d597dcc15d0ea93955c2a3007f9e3feb69d57c81b8bee156f4fc34377c2fc185645760",
    ),
    (
        "0002_unit_of_workspace",
        "c37898ad86583f07130435cc91b50e45ed564a9585fea760ae1d2bed6b065e4eb483ab4b9f0205aef3e6b882be2eee33",
        "3b023073cb73c4c54ed6d01da4c17a97bf8b1f5db7ebf36d2351c42166e19e1eeb9b95853006a736ec70face19597586",
    ),
    (
        "0003_run_index",
        "9193632b210bee5f4ab675ca7957055756d152dcf345746751f07178bd97fcc7183fae1eb4709df4b0c5e5c4e3f6b5b1",
        "08b75c60ee0b391297d38ce894ada030c8569d06b4af553d23a0eb5b77887d803f39b3abc9145f2060393bdced9e4dbe",
    ),
    (
        "0004_quarantine",
        "d544cd922c208210fbcc9c8436383ffd59a4506cd201689719bc903984d48d8ff1fb969c9bd1a2ac4c2aff4a741fb360",
        "d169f51ec9868d5d3b7eb1964bdb90c74fd5b1c9ffff1da25d935889ef8d6ca9855faa5330fc1c1ba5f4a26af339d210",
    ),
    (
        "0005_project_key",
        "a20d22797e67209eeafcdd477a86d0eadc2132b38d1f7fc04eab87796ae0256a571dafd7062abe5c27367441586fdaae",
        "e0290b49edacdf8ae9289a14bdce51f4173f8dac6ef74de1921b16d018e757c88034306d58f16e39c8576fc70248410d",
    ),
    (
        "0006_exports_and_removals",
        "d3a49a8457d24a60520a080ca67ea33f4025d4a45edad68a9bc4d07564620512cda1588cf7d0d830adc60c8add842fcd",
        "23eb4a396a2b92d4abe99a325284683a64c90dfea44c6f89e6799fe670b771b720ee2c9e0c73ceaad9d6296d6959150a",
    ),
    (
        "0007_bounds",
        "1b7a81627f558b7db0a1827a0ae7c14857df8173864dfa721346a115789b2f7be65fa8bc2325d08fadc871207c1729da",
        "98c03e689082b945adc9b5411b738754665e3ca66859bf880302c79827a0ea39825aa06556bfa873bdd51395db9fe76c",
    ),
    (
        "0008_export_missing_operations",
        "afd087be6fb950d702f4654552b499888db4d5482a5dda81f0cab3b491c8197fa926e75eca29a754592383b854526ccf",
        "8890d8cfba94d4882c1f4572404f42969aca99cd116a728bbfc8fa6bb24cccad4c3dd2b25581552dabadf26afa7c9d59",
    ),
    (
        "0009_worker_leases",
        "8a3207f1444435fdc7e8fc23f2c6bd1f20227c813b524e29aa11514bc727d3ce4bd94c58e7e0b970a2e6e958739639c2",
        "e8ec9cf4f0cd7bf278919d5e32d0ecfab48ffce44ca6d6f75ecd1ad2693da5075d5f550d194cae4962ba648d8ec7b296",
    ),
    (
        "0010_job_history",
        "94763180b13aa99893d64ee9e2d7a1c1d38ebf1c4f5ba2b93fd33c23a527e5daf2cb5510da157cda8237647b3085dac0",
        "46792b6cdc4eefc8dbb21a7e1e9408d67b0ca4a98b226f66f9ee674a6b97cb5a7a1c1ac982733af97ab30da795affe35",
    ),
    (
        "0011_agent_server",
        "61aa2e5935e79b09ae4dedbf2a89d1a1ba16e8e2a0231e9eb38b221a1f289456811d5fadb51cbc3ef31981db5d6ff960",
        "c2df423b80ee357c7ea6ba3d162f3ee1d34d0803968b77e72b1796e3c3a6e94e2592c677e61fcffba5bc9ebd077d5866",
    ),
    (
        "0012_key_scopes",
        "57147dd55abfdf86bb1e56495d72676da511b835464459e6d6fa3a86790c9081796b101e8b091b334dc3600b125bd580",
        "8454a20b2239801de07415f32d0e4efea7e494cd1c2a9bbc9f1855084f257b865a7b800467ce3ed9adb2005c44dfffa6",
    ),
    (
        "0013_image_digest",
        "879a864f7b743c843773acb81fb609b12e839b25cd8c3eba80665ad3ae4a85550caf62e3533f391e0d10701da2c0e2b7",
        "11fd7520c0d82504d261721d6d79bf1f618091f56b2f9e6af754f43caf17c859ca1b1cd4b0f99388702df665e1538b43",
    ),
    (
        "0014_sealing_canary",
        "db90fb32605a972d96b60737888a02539955cd90fd95642b0314378ec575dd4aae0d3b632353219a3ca636ee5cf03742",
        "17823982ffd1a15969c07b19d35286b396cd8efb0ece176c6302125d26b831d60f79c42b5d36c6679c0bd306cc9566a0",
    ),
    (
        "0015_deployment_leftovers",
        "38e5b90cb1dbbcbfa1bad52ad38df293a3ef8a13329ab966cb735a4d47d44f344233d8da028b5f65ec1b0589ae20c7c5",
        "b98fdf4183e07095e16ebdf45c63d408c5f6ddd5494d5c9b1db129ae62690f3749d4c9149361fa6c64a20d2e9ead0998",
    ),
    (
        "0016_deployment_keeper",
        "8b700f533881866fb2e82d9acf5aa8be59801e5fe4b6422a5cba1a41d2e68926e757b002eac1cd1149497c2d53395381",
        "fb583e64c00f4e99049752a24287dbd7095595388d2ec7c747b4b845fbae2354b5629724a637528bd64bc6a6857c10da",
    ),
    (
        "0017_archive_release",
        "080243c94a8d0f47eb7c284d6789dccb1aaa1c577f0c04fc3e45bdc41d43607b2d67d3a2dae1dd3d7e331a62f60e5175",
        "cc67ce4832586524bb2127f6311b8f2cd91350f116f57c25d2c7800422c70f642f8f51f71ee8abe9e641c3c9b33485b0",
    ),
    (
        "0018_revision_keys",
        "acd945df2a7c751a5cbe19b1a50e35b442621144366b0ea6954d71bb8c17cd0de8b02332dc907f00527bf4507959d69f",
        "a6a4b57b4a2458e4174a427cf64dbd40402557f4e6f043c22a06f2e19b954e39882c51d90b9f25795cdffbcac4c69ebc",
    ),
    (
        "0019_a2a",
        "a99082a6360ab13e80bb11727ad7e7c7f891837dc8ef02b0097a6198f87b9f04d0ac9dd0d279f4f37dae93009370754c",
        "51bf268a9de366137967c3fd00bf3638a25d2c5d742864b6dbe23de0a52e9e41c0aa34a9842b60522e538e5111fc5e98",
    ),
    (
        "0020_datasets",
        "3769f19dcfe55297ff066083eb95b82523b097bb1a70d401ce650c7070d7773e500c3fad153ff22f81182b3bb0e761f3",
        "cee3d89ecc7c70394f5a7107b132e150661bd4af0f8cdcb2717c1d67478a7de1228ba8cf54195dcee4a67a4f897e3939",
    ),
    (
        "0021_sandboxes",
        "088e38d3ef58623087739249119c088b98aa52c28a2f804f3063ab5a3c986904f8a683cc0a9cb55dc70e36dc4f6c15dd",
        "4abd0459f5e0d396ef993554917c288b12a171c52361b09d276ab85a04d16ac99211fc406286ad38f23f34b5b691bfef",
    ),
    (
        "0022_model_prices",
        "f8b36054773c881165313e2f34be75d5e1511ed60459a9c2b736e69c8b64d01161c2d09581818cceb771ba52b052a2d5",
        "f3258de1a4848ef75c9f4ed8a2f1b772de13e3d313a38488fdcc92fa5729e11b1e3b8367513ff9948119c9843260b776",
    ),
    (
        "0023_prompts",
        "3720bda7379cbe861f62dae9cc83cb576916d62c0c8f74189fce2594d56f9b6d07c89eeda044c56c60d0f15a2a797c0a",
        "9c1351d72b1dc5c8ffda22cbe4f70ef5a7a167ba5cd8231d322ca9f78f4ae4fb7a7ec139889e04e9eb83022bb6c02838",
    ),
    (
        "0024_item_vectors",
        "294d8657c0b88c82deb3ee49e58a4a24d8078d4d5c097739df29aa86254d138e87096caeb4734db49fa142e26ce81f1e",
        "2ce200cec80b98b287692add1457205982d6cd6d316c897f4aa7902d43b10856b60599cb7459790ba94009b2d4ba5bd4",
    ),
    (
        "0025_sandbox_network",
        "e1a56f28eb5e4679bafaaddc53493de131394c286f2cfdba1cd55ff746327c41e669e838fdfe13feedbfab09966c3fe4",
        "5672a00a39955f06fe8570aa1194871d217166dddf229f69d42779eefd0a1b766f50cdf8b594be10725b3c065f220bea",
    ),
    (
        "0026_a2a_context",
        "500c83b40975d7edce99de9547e72f7437e9f69dc1f7011a2037282cefc868581f7cfc16f258893136e011b0df811705",
        "9e5d36cd462aa0416812b81988476d2a12c49b967e5c7b683a589ebfa04cf0b5e29ebb15ef82efc4ba71b8f19bdb1050",
    ),
    (
        "0027_run_event_removal",
        "9207e13ee228b7cf839c1291e48a616c03f6c8d8e87894d9fcd74ed7eb72aea669424d7582f74aa8d6f3a0b8324a2adf",
        "e4567c01a48291b78ea2a0069caed6b5c6151df0771c7f6d6cf0a94694e3f632e3dee2b83a388a8053821e3606aafd03",
    ),
    (
        "0028_sandbox_nodes",
        "80edc7df8063335f588273f1cfa3e544d7091694739f73a1916515dbdcd67bf2c5593e94d4df6f8f722ab31c26b35c64",
        "f176c583f542e65bd99ecebdabdbdf5d2ffd5f6261071c76a5cb2cce0390c4055fcbe31949d3863ff1f3c294d1e8efe8",
    ),
];

#[test]
fn migrations_come_in_pairs_and_are_frozen() {
    let names = |migrator: &Migrator| -> Vec<String> {
        let names = migrator
            .iter()
            .map(|one| format!("{:04}_{}", one.version, one.description.replace(' ', "_")));
        names.collect()
    };
    let listed = FROZEN.map(|(name, ..)| name);
    assert_eq!(
        names(&SQLITE),
        listed,
        "migrations/sqlite: a pair has the same name in both folders and stands in FROZEN"
    );
    assert_eq!(
        names(&POSTGRES),
        listed,
        "migrations/postgres: a pair has the same name in both folders and stands in FROZEN"
    );
    for (migrator, folder) in [(&SQLITE, "sqlite"), (&POSTGRES, "postgres")] {
        for (one, (name, sqlite, postgres)) in migrator.iter().zip(FROZEN) {
            let expected = if folder == "sqlite" { sqlite } else { postgres };
            assert_eq!(
                hex::encode(&one.checksum),
                expected,
                "migrations/{folder}/{name}.sql was edited; databases that have it would be refused. Restore the file, \
                 comments too, and put the change into a new pair"
            );
        }
    }
}

/// What a table, its indexes and its foreign keys are, in words that are the same for both databases.
async fn catalog(raw: &mut RawConnection) -> Vec<String> {
    let columns = raw.ask(
        "SELECT t.name || '.' || c.name || ' ' || c.type
                || CASE WHEN c.\"notnull\" OR c.pk THEN ' NOT NULL' ELSE '' END
                || CASE WHEN c.dflt_value IS NULL THEN '' ELSE ' DEFAULT' END
         FROM sqlite_master t, pragma_table_info(t.name) c
         WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite~_%' ESCAPE '~' AND t.name <> '_sqlx_migrations'
         ORDER BY t.name, c.cid",
        "SELECT table_name || '.' || column_name || ' '
                || CASE data_type WHEN 'uuid' THEN 'BLOB' WHEN 'bytea' THEN 'BLOB' WHEN 'text' THEN 'TEXT' WHEN 'date' THEN 'TEXT'
                                  WHEN 'jsonb' THEN 'TEXT' WHEN 'double precision' THEN 'REAL' ELSE 'INTEGER' END
                || CASE is_nullable WHEN 'NO' THEN ' NOT NULL' ELSE '' END
                || CASE WHEN column_default IS NULL THEN '' ELSE ' DEFAULT' END
         FROM information_schema.columns WHERE table_schema = current_schema() AND table_name <> '_sqlx_migrations'
         ORDER BY table_name, ordinal_position",
    );
    let mut catalog = columns.await;
    let indexes = raw.ask(
        "SELECT tbl_name || ' has ' || name || CASE WHEN sql LIKE 'CREATE UNIQUE %' THEN ' UNIQUE' ELSE '' END
                || CASE WHEN sql LIKE '% WHERE %' THEN ' WHERE' ELSE '' END AS what
         FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY tbl_name, name",
        "SELECT t.relname || ' has ' || i.relname || CASE WHEN x.indisunique THEN ' UNIQUE' ELSE '' END
                || CASE WHEN x.indpred IS NULL THEN '' ELSE ' WHERE' END
         FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
         WHERE t.relnamespace = current_schema()::regnamespace
           AND NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conindid = x.indexrelid) ORDER BY t.relname, i.relname",
    );
    catalog.extend(indexes.await);
    let keys = raw.ask(
        "SELECT DISTINCT t.name || ' names ' || k.\"table\" || ' ON DELETE ' || k.on_delete
         FROM sqlite_master t, pragma_foreign_key_list(t.name) k WHERE t.type = 'table' ORDER BY 1",
        "SELECT conrelid::regclass || ' names ' || confrelid::regclass || ' ON DELETE '
                || CASE confdeltype WHEN 'c' THEN 'CASCADE' ELSE 'NO ACTION' END COLLATE \"C\"
         FROM pg_constraint WHERE contype = 'f' AND connamespace = current_schema()::regnamespace ORDER BY 1",
    );
    catalog.extend(keys.await);
    catalog
}

#[tokio::test]
async fn both_databases_have_the_same_tables_and_columns() {
    let Some(postgres) = EmptyDatabase::postgres().await else {
        return;
    };
    let mut catalogs = Vec::new();
    for fresh in [EmptyDatabase::sqlite(), postgres] {
        let store = fresh.store().await;
        store.migrate().await.unwrap();
        catalogs.push(catalog(&mut fresh.raw().await).await);
        store.close().await;
    }
    for (sqlite, postgres) in catalogs[0].iter().zip(&catalogs[1]) {
        assert_eq!(sqlite, postgres, "SQLite has the left one, PostgreSQL the right one");
    }
    assert_eq!(catalogs[0].len(), catalogs[1].len());
    assert!(catalogs[0].len() > 400, "{}", catalogs[0].len());
}

/// Leaves what a build from before the first release does: other migrations under the same numbers, and more of them.
async fn older_build(fresh: &EmptyDatabase, migrations: i64) {
    let older = (1..=migrations).map(|version| {
        let text = format!("CREATE TABLE older_{version} (id INTEGER)");
        Migration::new(
            version,
            format!("older {version}").into(),
            MigrationType::Simple,
            sqlx::AssertSqlSafe(text).into_sql_str(),
            false,
        )
    });
    let older = Migrator::with_migrations(older.collect());
    fresh.raw().await.migrate(&older, migrations).await.unwrap();
}

/// Expects that `migrate` refuses, each time, and leaves the database as it is.
async fn refusal(fresh: &EmptyDatabase) -> Error {
    let before = fresh.raw().await.tables().await;
    let store = fresh.store().await;
    let first = store.migrate().await.unwrap_err().to_string();
    // Another process is not kept waiting by the first.
    let second = store.with_own_pool(1).unwrap().migrate().await.unwrap_err();
    assert_eq!(first, second.to_string());
    let seen = migrations::schema(&store).await.unwrap().check();
    assert_eq!(first, seen.unwrap_err().to_string());
    store.close().await;
    assert_eq!(fresh.raw().await.tables().await, before);
    assert_eq!(first.lines().count(), 1, "{first}");
    let name = fresh.uri.rsplit('/').next().unwrap();
    assert!(first.contains(name) && !first.contains('@'), "{first}");
    second
}

async fn an_older_build_is_refused(fresh: EmptyDatabase, migrations: i64) {
    older_build(&fresh, migrations).await;
    let refused = refusal(&fresh).await;
    assert!(matches!(refused, Error::OlderBuild { .. }), "{refused:?}");
    let text = refused.to_string();
    for part in [
        "older build",
        "cannot be carried over",
        "a new data folder or an empty database",
    ] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

async fn a_newer_build_is_refused(fresh: EmptyDatabase) {
    let store = fresh.store().await;
    store.migrate().await.unwrap();
    store.close().await;
    // Closed, it still holds the lock of its file.
    drop(store);
    let later = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
                 SELECT 9000, 'later', success, checksum, 0 FROM _sqlx_migrations WHERE version = 1";
    fresh.raw().await.execute(later).await;
    let refused = refusal(&fresh).await;
    assert!(
        matches!(refused, Error::NewerBuild { version: 9000, .. }),
        "{refused:?}"
    );
}

#[tokio::test]
async fn databases_of_other_builds_are_refused_on_sqlite() {
    an_older_build_is_refused(EmptyDatabase::sqlite(), 40).await;
    an_older_build_is_refused(EmptyDatabase::sqlite(), 1).await;
    a_newer_build_is_refused(EmptyDatabase::sqlite()).await;
}

#[tokio::test]
async fn databases_of_other_builds_are_refused_on_postgres() {
    for migrations in [40, 1] {
        if let Some(fresh) = EmptyDatabase::postgres().await {
            an_older_build_is_refused(fresh, migrations).await;
        }
    }
    if let Some(fresh) = EmptyDatabase::postgres().await {
        a_newer_build_is_refused(fresh).await;
    }
}
