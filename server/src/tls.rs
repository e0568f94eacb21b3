//! TLS: a certificate that may be replaced, and connections that it secures.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::serve::Listener;
use tls_listener::TlsListener;
use tls_listener::rustls::TlsAcceptor;
use tls_listener::rustls::rustls::crypto::{CryptoProvider, ring};
use tls_listener::rustls::rustls::pki_types::pem::PemObject;
use tls_listener::rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tls_listener::rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tls_listener::rustls::rustls::sign::CertifiedKey;
use tls_listener::rustls::rustls::{Error, ServerConfig};
use tls_listener::rustls::server::TlsStream;
use tokio::net::{TcpListener, TcpStream};

/// How long nobody is let in when the system has no connection to give.
const PAUSE: Duration = Duration::from_secs(1);

/// The certificate that a server shows, and its key. A clone is another handle of the same.
#[derive(Debug, Clone)]
pub struct Certificate {
    shown: Arc<Shown>,
    config: Arc<ServerConfig>,
}

#[derive(Debug)]
struct Shown(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl Shown {
    fn current(&self) -> Arc<CertifiedKey> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Certificate {
    /// `chain` has the server's own certificate and then those that vouch for it, `key` its private key,
    /// both in PEM.
    ///
    /// # Errors
    ///
    /// One of them is no PEM, or they do not belong together.
    pub fn parse(chain: &[u8], key: &[u8]) -> io::Result<Self> {
        let wrong = |message: String| io::Error::new(io::ErrorKind::InvalidData, message);
        let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| wrong(format!("the certificate: {error}")))?;
        if chain.is_empty() {
            return Err(wrong(
                "the certificate: there is none (-----BEGIN CERTIFICATE-----)".into(),
            ));
        }
        let key = PrivateKeyDer::from_pem_slice(key);
        let key = key.map_err(|error| wrong(format!("the private key: {error}")))?;
        let provider = Arc::new(ring::default_provider());
        let shown = CertifiedKey::from_der(chain, key, &provider);
        let shown = shown.map_err(|error| wrong(format!("certificate and key: {error}")))?;
        let shown = Arc::new(Shown(RwLock::new(Arc::new(shown))));
        let config = config(provider, shown.clone()).map_err(|error| wrong(error.to_string()))?;
        Ok(Self { shown, config: Arc::new(config) })
    }

    /// From now on `other` is shown, also where a server has this one.
    pub fn replace(&self, other: &Self) {
        let new = other.shown.current();
        *self.shown.0.write().unwrap_or_else(PoisonError::into_inner) = new;
    }

    /// Secures the connections to `listener`.
    pub(crate) fn secure(&self, listener: TcpListener) -> Secured {
        Secured(TlsListener::new(self.config.clone().into(), listener))
    }
}

/// A port where TLS is spoken.
pub(crate) struct Secured(TlsListener<TcpListener, TlsAcceptor>);

impl Listener for Secured {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            match self.0.accept().await {
                Ok(accepted) => return accepted,
                // It was gone before its turn came.
                Err(tls_listener::Error::ListenerError(error))
                    if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // As where there are no files left.
                Err(tls_listener::Error::ListenerError(error)) => {
                    tracing::error!("no connection can be taken: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
                // Whoever looks only whether the port is open, or speaks something else, each time.
                Err(error) => tracing::debug!("no TLS with a client: {error}"),
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.0.listener().local_addr()
    }
}

fn config(provider: Arc<CryptoProvider>, shown: Arc<Shown>) -> Result<ServerConfig, Error> {
    let config =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = config.with_no_client_auth().with_cert_resolver(shown);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
