import Foundation
import XCTest

@testable import Core

/// Signed models, whole and tampered with (`tests/apps/tampered.py`): each is refused for the reason that Python has.
final class SignedBundleTests: XCTestCase {
    private func home() throws -> URL { try vectors().appendingPathComponent("signed") }

    private func table() throws -> Json { try Json.read([UInt8](try Data(contentsOf: try home().appendingPathComponent("cases.json")))) }

    func testCases() throws {
        let cases = try table().objects("cases")
        let keys = try TrustedKeys(try table().texts("keys"))
        var refused = 0
        for test in cases {
            let folder = try test.text("folder")
            let policy = Policy(keys: keys, unsigned: try test.flag("debug"))
            let listed = try Models.open(try home().appendingPathComponent(folder), policy: policy)
            switch (try test.textOrNil("reason"), listed[0]) {
            case (nil, .usable(let model)): XCTAssertEqual(model.signedBy?.count, try test.flag("debug") ? nil : 64, folder)
            case (let reason?, .broken(_, let error)):
                XCTAssertEqual((error as? SignatureRefused)?.reason.word, reason, "\(folder): \(error)")
                XCTAssertTrue(error.description.contains("(\(reason))"), "\(folder): \(error)")
                refused += 1
            case (let reason, .usable): XCTFail("\(folder) is taken, and not refused (\(reason ?? ""))")
            case (nil, .broken(_, let error)): XCTFail("\(folder): \(error)")
            }
            guard case .usable = listed[1] else {
                XCTFail("\(folder): the other model stays usable")
                continue
            }
        }
        XCTAssertGreaterThan(refused, 50)
        print("signatures: \(cases.count) cases, \(refused) of them refused")
    }

    func testWithoutATrustedKeyNothingIsTaken() throws {
        for listed in try Models.open(try home().appendingPathComponent("whole"), policy: Policy(keys: try TrustedKeys([]))) {
            guard case .broken(_, let error as SignatureRefused) = listed else { return XCTFail("it is taken") }
            XCTAssertEqual(error.reason, .otherKey)
        }
    }

    func testATrustedKeyIsOfEcdsaP256() throws {
        func refused(_ text: String, _ why: String) {
            XCTAssertThrowsError(try TrustedKeys([text])) { XCTAssertTrue("\($0)".contains(why), "\($0)") }
        }
        for text in ["", "%", "AAAA"] { refused(text, "a trusted key cannot be read: \(text)") }
        // Of P-384, by the openssl command.
        refused(
            "MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEFI1ugPRafL4zc44fhJNxNRMmsN7b80yjA+ACQQX25G9EucIKX19785CHClkVKrWRyZgZ"
                + "Qeir8xv7w9pEOjq2wMlofdh1Xocz2oT0/T7+ih4nFVW2soeT8rnOiV/oc20c",
            "a trusted key is not of ECDSA P-256")
        var key = try XCTUnwrap(Data(base64Encoded: try table().texts("keys")[0]))
        key[key.count - 1] ^= 1
        refused(key.base64EncodedString(), "a trusted key cannot be read")
        refused((key + [0]).base64EncodedString(), "a trusted key cannot be read")
    }

    func testSignaturesOfEcdsa() throws {
        // Source: RFC 6979, appendix A.2.5, P-256 with SHA-256, message "sample".
        func bytes(_ hex: String) -> [UInt8] {
            stride(from: 0, to: hex.count, by: 2).compactMap { UInt8(hex.dropFirst($0).prefix(2), radix: 16) }
        }
        let key = bytes(
            "3059301306072a8648ce3d020106082a8648ce3d03010703420004"
                + "60fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6"
                + "7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299")
        let right = bytes(
            "3046022100efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716"
                + "022100f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8")
        XCTAssertTrue(Ecdsa.verify(key, Array("sample".utf8), right))
        XCTAssertFalse(Ecdsa.verify(key, Array("Sample".utf8), right))
        XCTAssertFalse(Ecdsa.verify(Array(key.dropLast()), Array("sample".utf8), right))
        for place in right.indices {
            var wrong = right
            wrong[place] ^= 0x40
            XCTAssertFalse(Ecdsa.verify(key, Array("sample".utf8), wrong), "byte \(place)")
            XCTAssertFalse(Ecdsa.verify(key, Array("sample".utf8), Array(right[..<place])), "\(place) bytes")
        }
        XCTAssertFalse(Ecdsa.verify(key, Array("sample".utf8), right + [0]))
        XCTAssertEqual(Sha256.hex(of: "abc".utf8), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
        XCTAssertEqual(Sha256.hex(of: [UInt8]()), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
    }

    func testAFolderShowsWhatLiesInItAndFollowsNoLink() throws {
        let root = FileManager.default.temporaryDirectory.appendingPathComponent("core-\(ProcessInfo.processInfo.globallyUniqueString)")
        defer { try? FileManager.default.removeItem(at: root) }
        try FileManager.default.createDirectory(at: root.appendingPathComponent("a/b"), withIntermediateDirectories: true)
        let folder = Folder(root: root)
        let content = [UInt8](repeating: 7, count: 200_000)
        try folder.write("a/b/file", content)
        try FileManager.default.createSymbolicLink(atPath: root.path + "/a/link", withDestinationPath: "b")
        try FileManager.default.createSymbolicLink(atPath: root.path + "/a/b/other", withDestinationPath: "file")
        XCTAssertEqual(mkfifo(root.path + "/a/pipe", 0o600), 0)
        let found = try folder.list("a").sorted { $0.path < $1.path }
        XCTAssertEqual(found.map(\.path), ["b/file", "b/other", "link", "pipe"])
        XCTAssertEqual(found.map(\.regular), [true, false, false, false])
        XCTAssertEqual(found[0].bytes, 200_000)
        XCTAssertEqual(try folder.read("a/b/file"), content)
        XCTAssertThrowsError(try folder.read("a/b/file", most: 199_999)) {
            XCTAssertEqual("\($0)", "a/b/file: it has more than 199999 bytes")
        }
        for path in ["a/b/other", "a/pipe", "a/b", "a/nothing"] {
            XCTAssertThrowsError(try folder.read(path)) { XCTAssertEqual("\($0)", "\(path): it is missing; ship the model again") }
        }
        XCTAssertThrowsError(try folder.list("nothing"))
        XCTAssertEqual(try folder.list("a/link").map(\.regular), [false])
        XCTAssertThrowsError(try folder.write("nothing/file", content))
    }
}
