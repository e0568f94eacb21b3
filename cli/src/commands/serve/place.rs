//! Where a server listens: a port, or a Unix socket.

use std::net::SocketAddr;
#[cfg(unix)]
use std::{
    io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use server::{Certificate, Server};
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};

/// Where a server listens.
pub enum Place {
    Port(TcpListener),
    #[cfg(unix)]
    Socket(UnixListener, SocketFile),
}

/// The file of a socket, which goes with it; not one that another server has put in its place.
#[cfg(unix)]
pub struct SocketFile {
    path: PathBuf,
    id: Option<(u64, u64)>,
}

#[cfg(unix)]
impl SocketFile {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), id: Self::id(path) }
    }

    /// Which file is at `path`: its device and its number there.
    fn id(path: &Path) -> Option<(u64, u64)> {
        path.symlink_metadata().ok().map(|it| (it.dev(), it.ino()))
    }
}

#[cfg(unix)]
impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.id.is_some() && Self::id(&self.path) == self.id {
            // It may be gone by now.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Place {
    /// A port.
    ///
    /// # Errors
    ///
    /// It is taken, or not for us.
    pub async fn port(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).await;
        let listener = listener
            .with_context(|| format!("cannot listen on {address}; --port takes another"))?;
        Ok(Self::Port(listener))
    }

    /// A Unix socket; one that is left of a program that did not end well is replaced.
    ///
    /// # Errors
    ///
    /// Somebody is there, or the file cannot be made.
    #[cfg(unix)]
    pub async fn socket(path: &Path) -> Result<Self> {
        let name = path.display();
        // Another error than that nobody listens is no word of that.
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        let stale = path.symlink_metadata().is_ok_and(|it| it.file_type().is_socket())
            && UnixStream::connect(path).await.is_err_and(refused);
        if stale {
            std::fs::remove_file(path).with_context(|| name.to_string())?;
        }
        let listener = UnixListener::bind(path);
        let listener = listener.with_context(|| format!("cannot listen on {name}"))?;
        Ok(Self::Socket(listener, SocketFile::new(path)))
    }

    /// Whether others than those on this machine may come.
    pub fn is_open(&self) -> bool {
        match self {
            Self::Port(listener) => {
                listener.local_addr().is_ok_and(|it| !it.ip().to_canonical().is_loopback())
            }
            #[cfg(unix)]
            Self::Socket(..) => false,
        }
    }

    /// Whether it is a port of an address that is this machine's alone.
    pub fn is_own_port(&self) -> bool {
        matches!(self, Self::Port(_)) && !self.is_open()
    }

    /// What clients call it.
    pub fn name(&self, tls: bool) -> Result<String> {
        let scheme = if tls { "https" } else { "http" };
        Ok(match self {
            Self::Port(listener) => format!("{scheme}://{}", listener.local_addr()?),
            #[cfg(unix)]
            Self::Socket(_, file) => file.path.display().to_string(),
        })
    }

    /// Has `server` answer there until `stop` is ready.
    pub async fn serve(
        self,
        server: Server,
        certificate: Option<&Certificate>,
        stop: impl Future<Output = ()>,
    ) -> Result<()> {
        match (self, certificate) {
            (Self::Port(listener), None) => server.serve(listener, stop).await?,
            (Self::Port(listener), Some(certificate)) => {
                server.serve_tls(listener, certificate, stop).await?;
            }
            #[cfg(unix)]
            (Self::Socket(listener, _file), _) => server.serve_on(listener, stop).await?,
        }
        Ok(())
    }
}
