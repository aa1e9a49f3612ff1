use std::fs::File;

use forebay_rt::Runtime;

use super::*;

fn generation(generation: u64) -> Told {
    Told { generation, owner: 1 }
}

#[test]
fn what_a_pool_reports_while_an_older_report_is_written_is_kept() {
    let folder = std::env::temp_dir().join(format!("forebay-reports-{}", std::process::id()));
    let state = StateDir::open_at(folder.clone()).unwrap();
    let (name, devices) = ("tank".to_owned(), vec!["/a".to_owned()]);
    let told = generation(1);
    state.remember(KnownPool { name, guid: 7, devices: devices.clone(), told }).unwrap();
    // The first report waits for the lock until the second one is there.
    let lock = File::options().write(true).open(state.path().join("lock")).unwrap();
    lock.lock().unwrap();
    let writer = StateWriter::new(state.clone());
    Runtime::real().unwrap().block_on(async move {
        let report = |number| {
            let (writer, devices) = (writer.clone(), devices.clone());
            rt::spawn(async move { writer.report(7, generation(number), devices).await })
        };
        let mut reports = Vec::new();
        for number in [2, 3] {
            reports.push(report(number));
            for _ in 0..10 {
                rt::yield_now().await;
            }
        }
        drop(lock);
        rt::join_all(reports).await;
    });
    assert_eq!(state.known_pools().unwrap()[0].told, generation(3));
    std::fs::remove_dir_all(&folder).unwrap();
}
