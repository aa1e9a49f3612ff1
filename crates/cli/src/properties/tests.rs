use std::io::{Read, Write};
use std::path::Path;

use super::*;

/// `docs/properties.md`.
fn markdown() -> String {
    let mut text = "# Properties of pools and volumes\n\n\
        `forebay pool get all` and `forebay volume get all` show them. `forebay pool set` \
        and\n`forebay volume set` change them. `pool create -o` and `volume create -o` set them \
        from the start.\nThe same is in forebay-properties(7), which `forebay man DIR` writes.\n"
        .to_owned();
    let parts =
        [("Pools", pool_rows(), POOL_READ_ONLY), ("Volumes", volume_rows(), VOLUME_READ_ONLY)];
    for (title, rows, read_only) in parts {
        text.push_str(&format!("\n## {title}\n\n"));
        text.push_str("| property | values | default | what it does | takes effect |\n");
        text.push_str("|---|---|---|---|---|\n");
        for row in rows {
            let Row { name, values, default, effect, takes_effect } = row;
            text.push_str(&format!(
                "| `{name}` | {values} | {default} | {effect} | {takes_effect} |\n"
            ));
        }
        text.push_str("\n| read-only | meaning |\n|---|---|\n");
        for ReadOnly { name, meaning } in read_only {
            text.push_str(&format!("| `{name}` | {meaning} |\n"));
        }
    }
    text
}

#[test]
fn page_in_docs_is_made_from_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/properties.md");
    let mut options = std::fs::OpenOptions::new();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let mut file = options.create(true).write(true).truncate(true).open(&path).unwrap();
        file.write_all(markdown().as_bytes()).unwrap();
        return;
    }
    let mut page = String::new();
    options.read(true).open(&path).unwrap().read_to_string(&mut page).unwrap();
    assert!(page == markdown(), "docs/properties.md differs; UPDATE_GOLDEN=1 writes it");
}

#[test]
fn every_property_is_in_help_and_manual() {
    let (pool, volume, manual) = (pool_set_help(), volume_set_help(), manual());
    for row in pool_rows() {
        assert!(pool.contains(&format!("\n  {} ", row.name)), "{}", row.name);
        assert!(manual.contains(&format!("\\fB{}\\fR=", row.name)), "{}", row.name);
    }
    for row in volume_rows() {
        assert!(volume.contains(&format!("\n  {} ", row.name)), "{}", row.name);
    }
    for row in POOL_READ_ONLY.iter().chain(VOLUME_READ_ONLY) {
        assert!(manual.contains(&format!(".B {}\n", row.name)), "{}", row.name);
    }
}

#[test]
fn sentences_and_names_are_fit_for_a_table() {
    for row in pool_rows().into_iter().chain(volume_rows()) {
        assert!(row.effect.ends_with('.') && !row.effect.contains('|'), "{}", row.name);
        assert!(!row.values.is_empty() && !row.takes_effect.is_empty(), "{}", row.name);
    }
}
