//! Whose certificates are believed.

use ureq::tls::RootCerts;

/// Those of the system, a company's among them; Mozilla's on systems that have none, as small containers.
pub fn roots() -> RootCerts {
    match rustls_native_certs::load_native_certs().certs.is_empty() {
        true => RootCerts::WebPki,
        false => RootCerts::PlatformVerifier,
    }
}
