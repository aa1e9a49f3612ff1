//! Writes the seeds that the encoders make to `seeds/TARGET/NAME`.

fn main() -> std::io::Result<()> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    for (target, name, bytes) in forebay_fuzz::seeds::all() {
        std::fs::create_dir_all(root.join(target))?;
        std::fs::write(root.join(target).join(name), bytes)?;
    }
    Ok(())
}
