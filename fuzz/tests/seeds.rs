//! Replays all seeds, what earlier runs have found among them, with a stable compiler.

#[test]
fn every_seed_passes_its_target() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    for (target, check) in forebay_fuzz::TARGETS {
        let mut seen = 0;
        for entry in std::fs::read_dir(root.join(target)).unwrap() {
            check(&std::fs::read(entry.unwrap().path()).unwrap());
            seen += 1;
        }
        assert!(seen > 0, "{target} has no seeds");
    }
    let folders = std::fs::read_dir(&root).unwrap().count();
    assert_eq!(folders, forebay_fuzz::TARGETS.len(), "seeds of a target that is not there");
}

#[test]
fn seeds_are_what_the_encoders_make() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    for (target, name, bytes) in forebay_fuzz::seeds::all() {
        let kept = std::fs::read(root.join(target).join(name)).unwrap_or_default();
        assert!(kept == bytes, "{target}/{name}: run the example that writes them");
    }
}
