use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::channel;

use forebay_rt::Runtime;

use super::*;

#[test]
fn path_that_hangs_holds_one_thread_until_it_answers() {
    Runtime::real().unwrap().block_on(async {
        let (go_on, wait) = channel::<()>();
        let path = Path::new("/hangs/for/this/test");
        let outcome = probe(path, move |_| wait.recv().is_err()).await;
        assert_eq!(outcome, Err(NoAnswer));
        let again = probe(path, |_| unreachable!("the first probe has not ended")).await;
        assert_eq!(again, Err::<(), _>(NoAnswer));
        drop(go_on);
        while probe(path, |_| ()).await.is_err() {
            rt::sleep(Nanos::from_millis(5)).await;
        }
    });
}

#[test]
fn paths_beside_one_that_hangs_are_probed() {
    Runtime::real().unwrap().block_on(async {
        let paths: Vec<PathBuf> = ["/", "/hangs", "/proc"].map(PathBuf::from).to_vec();
        let (go_on, wait) = channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let probed = probe_each(paths.clone(), move |path| {
            if path == Path::new("/hangs") {
                let _ = wait.lock().unwrap().recv();
            }
            path.metadata().map(|meta| meta.permissions().mode() & 0o111 != 0).ok()
        })
        .await;
        drop(go_on);
        let expected = [Ok(Some(true)), Err(NoAnswer), Ok(Some(true))];
        assert_eq!(probed, paths.into_iter().zip(expected).collect::<Vec<_>>());
    });
}
