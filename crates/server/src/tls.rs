//! TLS by files: a certificate chain and its key in PEM.

use crate::settings::read_file;
use ramekin_base::{Error, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::Arc;

/// The door's side.
pub fn server(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>> {
    let chain = certificates(cert)?;
    let private = PrivateKeyDer::from_pem_slice(&read_file(key)?)
        .map_err(|error| Error::invalid(format!("no private key in PEM is in it: {error}")).at(key.display()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::bug(error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| Error::invalid(format!("certificate and key do not fit: {error}")).at(cert.display()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The side of `ramekin memory https://...`, which trusts the given certificates only.
pub fn client(trusted: &Path) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(trusted)? {
        roots.add(certificate).map_err(|error| Error::invalid(error.to_string()).at(trusted.display()))?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::bug(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let bytes = read_file(path)?;
    let chain = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| Error::invalid(format!("not a certificate in PEM: {error}")).at(path.display()))?;
    if chain.is_empty() {
        return Err(Error::invalid("no certificate in PEM is in it").at(path.display()));
    }
    Ok(chain)
}
