//! Catches panics of the subject with message and source location.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static MESSAGE: RefCell<String> = const { RefCell::new(String::new()) };
}

static HOOK: Once = Once::new();

/// Runs `work`. A panic is returned as its message and location instead of being printed.
pub fn catch<T>(work: AssertUnwindSafe<impl FnOnce() -> T>) -> Result<T, String> {
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if CATCHING.get() {
                MESSAGE.with(|message| *message.borrow_mut() = info.to_string());
            } else {
                print(info);
            }
        }));
    });
    let before = CATCHING.replace(true);
    let out = catch_unwind(work);
    CATCHING.set(before);
    out.map_err(|_| MESSAGE.take())
}
