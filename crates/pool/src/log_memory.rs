//! Log devices in memory: their changes become events, and they are saved before they are let go.
//! The task looks at object stores as well.

use std::rc::Rc;

use forebay_rt as rt;
use forebay_units::{DeviceId, Nanos};

use crate::Pool;
use crate::opener::OpenDevice;
use crate::status::PoolEvent;

/// Time between two looks at the devices. They act by themselves; this is for the operator.
const LOOK_INTERVAL: Nanos = Nanos::from_millis(500);

impl Pool {
    /// Runs until the pool is closed or stopped.
    pub(crate) async fn log_memory_loop(self: Rc<Self>) {
        let has_ended = || self.lifecycle.closing.get() || self.is_stopped();
        loop {
            let ended = Box::pin(self.sync.done.until(has_ended));
            let pause = Box::pin(rt::sleep(LOOK_INTERVAL));
            if let rt::Either::Right(_) = rt::select(pause, ended).await {
                return;
            }
            self.take_log_memory_changes();
            self.look_at_stores();
        }
    }

    fn take_log_memory_changes(&self) {
        let devices: Vec<OpenDevice> = self.devices.borrow().values().cloned().collect();
        for open in devices {
            for change in open.device().take_dram_changes() {
                let device = open.path.clone();
                self.health.events.push(PoolEvent::LogMemoryChanged { device, change });
            }
        }
    }

    /// Saves what only memory has of all devices. One that cannot be saved says so by an event: the
    /// pool does not need it any more.
    pub(crate) async fn save_log_memory(&self) {
        let devices: Vec<OpenDevice> = self.devices.borrow().values().cloned().collect();
        for open in devices {
            // Its state tells whether it succeeded.
            let _ = open.device().save().await;
        }
        self.take_log_memory_changes();
    }

    /// Lets a device go that the pool may get back.
    pub(crate) async fn close_device(&self, id: DeviceId) {
        let open = self.devices.borrow_mut().remove(&id);
        if let Some(open) = open {
            let _ = open.device().save().await;
        }
    }
}
