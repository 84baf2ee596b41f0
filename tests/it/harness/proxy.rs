//! The whole application inside the test process, told what to do as its signals would.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use switchboard::daemon::logging::Logs;
use switchboard::proxy::config::{LoadedConfig, Overrides, Purpose, Report};
use switchboard::proxy::serve::{App, Command};
use switchboard::tunnel::drain::DrainResult;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::ports::{Ports, READY};
use super::{DEADLINE, on_free_ports};

/// A proxy that runs.
#[derive(Debug)]
pub(crate) struct Proxy {
    public: SocketAddr,
    admin: SocketAddr,
    settings: Arc<Mutex<String>>,
    commands: mpsc::Sender<Command>,
    running: JoinHandle<DrainResult>,
    runtime: Runtime,
}

impl Proxy {
    /// Starts with these settings: YAML, without the addresses to listen on. It is ready then.
    pub(crate) fn start(settings: &str) -> Self {
        Self::start_and(settings, || ())
    }

    /// As [`Self::start`]; `loaded` is called at the end of each reading of the settings.
    pub(crate) fn start_and(settings: &str, loaded: impl Fn() + Send + Sync + 'static) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let settings = Arc::new(Mutex::new(settings.to_owned()));
        let read = Arc::clone(&settings);
        let source = Box::new(move || {
            let read = configuration(&read.lock().unwrap());
            loaded();
            read
        });
        let app = runtime.block_on(App::start(source, Logs::default())).unwrap();
        let (commands, received) = mpsc::channel(1);
        let proxy = Self {
            public: app.public_addresses()[0],
            admin: app.admin_address(),
            settings,
            commands,
            running: runtime.spawn(app.run(received)),
            runtime,
        };
        proxy.becomes(READY);
        proxy
    }

    /// Has it read these settings instead.
    pub(crate) fn reload(&self, settings: &str) {
        settings.clone_into(&mut self.settings.lock().unwrap());
        self.tell(Command::Reload);
    }

    /// Has it drain; the second time, end.
    pub(crate) fn stop(&self) {
        self.tell(Command::Stop);
    }

    /// Waits for the end of the drain.
    pub(crate) fn drained(self) -> DrainResult {
        let running = async { timeout(DEADLINE, self.running).await };
        self.runtime.block_on(running).unwrap().unwrap()
    }

    fn tell(&self, command: Command) {
        self.commands.blocking_send(command).unwrap();
    }
}

impl Ports for Proxy {
    fn public(&self) -> SocketAddr {
        self.public
    }

    fn admin(&self) -> SocketAddr {
        self.admin
    }
}

fn configuration(settings: &str) -> Result<LoadedConfig, Report> {
    LoadedConfig::from_reader(
        "settings",
        on_free_ports(settings).as_bytes(),
        &Overrides::default(),
        Purpose::Serve,
    )
}
