import Core
import Darwin
import Foundation
import UIKit

/// What an app knows of the iPhone or iPad that it runs on, for records; what the system does not tell is nil.
final class IPhone: Phone {
    let versions: [String: String]
    let processToReadyMs: Double?
    let memoryKind = "footprint"
    let thermalStates = ["nominal", "fair", "serious", "critical"]
    private let background = BackgroundCount()

    /// Reads what does not change; call it once the app can take a request.
    ///
    /// - Parameter runtimes: versions of the runtimes that are linked in, by their names.
    init(runtimes: [String: String]) {
        let bundle = Bundle.main.infoDictionary ?? [:]
        var versions = runtimes
        versions["app"] = bundle["CFBundleShortVersionString"] as? String ?? "unknown"
        #if DEBUG
            versions["build"] = "Debug"
        #else
            versions["build"] = "Release"
        #endif
        self.versions = versions
        processToReadyMs = System.startOfProcess().map { (Date().timeIntervalSince1970 - $0) * 1_000 }
        let background = background
        Task { @MainActor in
            // Without it the level is never told.
            UIDevice.current.isBatteryMonitoringEnabled = true
            background.start()
        }
    }

    var source: String {
        #if targetEnvironment(simulator)
            "simulator"
        #else
            "device"
        #endif
    }

    var machine: Machine {
        let process = ProcessInfo.processInfo
        let version = process.operatingSystemVersion
        return Machine(
            platform: "ios", modelId: System.modelId, soc: nil,
            os: "\(version.majorVersion).\(version.minorVersion).\(version.patchVersion)", osBuild: System.text("kern.osversion"),
            ramBytes: Int64(process.physicalMemory), cores: process.processorCount, abi: System.abi, pageSize: Int(getpagesize()),
            coreMaxMhz: nil, cpuFeatures: System.features)
    }

    func moment() -> Moment {
        let process = ProcessInfo.processInfo
        let screen = Self.ofScreen()
        return Moment(
            thermal: Self.word(process.thermalState), batteryFraction: screen.battery, charging: screen.charging,
            lowPower: process.isLowPowerModeEnabled, foreground: screen.foreground,
            timesInBackground: background.times, loadAverage: System.loadAverage())
    }

    func residentBytes() -> Int64? { System.footprint()?.now }

    func peakBytes() -> Int64? { System.footprint()?.peak }

    func proportionalBytes() -> Int64? { nil }

    func cpuMs() -> Double? {
        var time = timespec()
        return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0 ? Double(time.tv_sec) * 1e3 + Double(time.tv_nsec) / 1e6 : nil
    }

    private struct OfScreen: Sendable {
        let battery: Double?
        let charging: Bool?
        let foreground: Bool
    }

    /// Asks what the main thread alone may be asked; a benchmark asks from its own.
    private static func ofScreen() -> OfScreen {
        let ask: @Sendable () -> OfScreen = { MainActor.assumeIsolated { read() } }
        return Thread.isMainThread ? ask() : DispatchQueue.main.sync(execute: ask)
    }

    @MainActor
    private static func read() -> OfScreen {
        let device = UIDevice.current
        let charging: Bool? =
            switch device.batteryState {
            case .charging, .full: true
            case .unplugged: false
            default: nil
            }
        // The level is -1 where the system does not know it, as in the simulator.
        return OfScreen(
            battery: device.batteryLevel < 0 ? nil : Double(device.batteryLevel), charging: charging,
            // A notification or the control centre over the app makes it inactive, and does not slow it.
            foreground: UIApplication.shared.applicationState != .background)
    }

    private static func word(_ state: ProcessInfo.ThermalState) -> String? {
        switch state {
        case .nominal: "nominal"
        case .fair: "fair"
        case .serious: "serious"
        case .critical: "critical"
        @unknown default: nil
        }
    }
}

/// Counts how often the app goes into the background.
private final class BackgroundCount: @unchecked Sendable {
    private let lock = NSLock()
    private var count = 0

    var times: Int { lock.withLock { count } }

    /// Begins to count, for as long as the process lives.
    @MainActor
    func start() {
        _ = NotificationCenter.default.addObserver(forName: UIApplication.didEnterBackgroundNotification, object: nil, queue: nil) {
            [self] _ in lock.withLock { count += 1 }
        }
    }
}
