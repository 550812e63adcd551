//! TLS by files: a certificate chain and its key in PEM.

use crate::etcd::Tls;
use crate::settings::read_file;
use ramekin_base::{Error, Result};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, OtherError, RootCertStore, ServerConfig,
    SignatureScheme, SupportedProtocolVersion,
};
use std::path::Path;
use std::sync::Arc;

/// The side of the REST door.
pub fn server(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>> {
    let mut config = of_files(cert, key, rustls::DEFAULT_VERSIONS, None)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The side of etcd's door, which may want certificates of its clients.
pub fn of_member(tls: &Tls) -> Result<Arc<ServerConfig>> {
    let versions = [(tls.has_1_2, &rustls::version::TLS12), (tls.has_1_3, &rustls::version::TLS13)];
    let versions: Vec<_> = versions.into_iter().filter(|(has, _)| *has).map(|(_, version)| version).collect();
    let mut config = of_files(&tls.cert, &tls.key, &versions, tls.clients.as_deref())?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// `clients` signed the certificate that each client has to show; `None`: they show none.
fn of_files(
    cert: &Path,
    key: &Path,
    versions: &[&'static SupportedProtocolVersion],
    clients: Option<&Path>,
) -> Result<ServerConfig> {
    let chain = certificates(cert)?;
    let private = PrivateKeyDer::from_pem_slice(&read_file(key)?)
        .map_err(|error| Error::invalid(format!("no private key in PEM is in it: {error}")).at(key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(|error| Error::bug(error.to_string()))?;
    let builder = match clients {
        Some(path) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(path)?), provider).build();
            let wrong = |error: VerifierBuilderError| Error::invalid(error.to_string()).at(path.display());
            let (signed, trusted) = (verifier.map_err(wrong)?, certificates(path)?);
            builder.with_client_cert_verifier(Arc::new(Clients { signed, trusted }))
        }
        None => builder.with_no_client_auth(),
    };
    builder
        .with_single_cert(chain, private)
        .map_err(|error| Error::invalid(format!("certificate and key do not fit: {error}")).at(cert.display()))
}

/// Clients whose certificate a trusted one signed, or is a trusted one itself: Go takes an authority for a client too, and etcd's users
/// have such certificates.
#[derive(Debug)]
struct Clients {
    signed: Arc<dyn ClientCertVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

/// Whether nothing is wrong but that it is an authority's: that is looked at after the time in which it is valid.
fn is_of_authority(error: &rustls::Error) -> bool {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(error))) => {
            matches!(error.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
        }
        _ => false,
    }
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        match self.signed.verify_client_cert(own, between, now) {
            Err(error) if is_of_authority(&error) && self.trusted.iter().any(|trusted| trusted == own) => {
                Ok(ClientCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls12_signature(message, own, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls13_signature(message, own, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

fn roots(trusted: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(trusted)? {
        roots.add(certificate).map_err(|error| Error::invalid(error.to_string()).at(trusted.display()))?;
    }
    Ok(roots)
}

/// The side of `ramekin memory https://...`, which trusts the given certificates only.
pub fn client(trusted: &Path) -> Result<Arc<ClientConfig>> {
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::bug(error.to_string()))?
        .with_root_certificates(roots(trusted)?)
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
