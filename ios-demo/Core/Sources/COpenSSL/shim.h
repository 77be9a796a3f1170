// What Contract/Crypto.swift needs of OpenSSL 3, on Linux alone.
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
