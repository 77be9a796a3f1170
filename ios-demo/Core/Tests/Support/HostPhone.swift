import Core
import Foundation

/// The machine that runs the tests, as a phone. A test says how warm it is, since nobody warms it for a test.
public final class HostPhone: Phone, @unchecked Sendable {
    private let moments: [Moment]
    private let lock = NSLock()
    private var asked = 0
    public let source = "host"
    public let memoryKind = "rss"
    public let versions = ["pocketbert-core": "0.1.0"]

    public let thermalStates: [String]

    /// - Parameters:
    ///   - moments: what it tells when it is asked, one after the other; the last one for ever.
    ///   - thermalStates: the words of the moments' thermal states, the coolest first.
    public init(moments: [Moment], thermalStates: [String] = []) {
        self.moments = moments
        self.thermalStates = thermalStates
    }

    public convenience init(_ temperatures: [Double]) {
        let told: [Double?] = temperatures.isEmpty ? [nil] : temperatures
        self.init(moments: told.map { Moment(temperatureC: $0, foreground: true, loadAverage: 0.5) })
    }

    public var machine: Machine {
        let system = ProcessInfo.processInfo
        return Machine(
            platform: "host", modelId: Self.status("/proc/cpuinfo", "model name") ?? "unknown", soc: nil,
            os: system.operatingSystemVersionString, osBuild: nil, ramBytes: Int64(system.physicalMemory), cores: system.processorCount,
            abi: "unknown", pageSize: Int(sysconf(Int32(_SC_PAGESIZE))), coreMaxMhz: nil, cpuFeatures: [])
    }

    public var processToReadyMs: Double? { 1 }

    public func moment() -> Moment {
        lock.lock()
        let number = asked
        asked += 1
        lock.unlock()
        return moments[min(number, moments.count - 1)]
    }

    #if canImport(Darwin)
        private static let task = task_self_trap()

        public func residentBytes() -> Int64? { memory().map { Int64($0.resident_size) } }

        public func peakBytes() -> Int64? { memory().map { Int64($0.resident_size_max) } }

        public func proportionalBytes() -> Int64? { nil }

        private func memory() -> mach_task_basic_info_data_t? {
            var info = mach_task_basic_info_data_t()
            var count = mach_msg_type_number_t(MemoryLayout<mach_task_basic_info_data_t>.size / MemoryLayout<natural_t>.size)
            let result = withUnsafeMutablePointer(to: &info) { pointer in
                pointer.withMemoryRebound(to: integer_t.self, capacity: Int(count)) {
                    task_info(Self.task, task_flavor_t(MACH_TASK_BASIC_INFO), $0, &count)
                }
            }
            return result == KERN_SUCCESS ? info : nil
        }
    #else
        public func residentBytes() -> Int64? { Self.bytes("VmRSS") }

        public func peakBytes() -> Int64? { Self.bytes("VmHWM") }

        public func proportionalBytes() -> Int64? { Self.bytes("Pss:", of: "/proc/self/smaps_rollup") }

        private static func bytes(_ key: String, of file: String = "/proc/self/status") -> Int64? {
            status(file, key).flatMap { Int64($0.split(separator: " ")[0]) }.map { $0 * 1024 }
        }
    #endif

    public func cpuMs() -> Double? {
        var time = timespec()
        return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0 ? Double(time.tv_sec) * 1e3 + Double(time.tv_nsec) / 1e6 : nil
    }

    private static func status(_ file: String, _ key: String) -> String? {
        let lines = ((try? String(contentsOfFile: file, encoding: .utf8)) ?? "").split(separator: "\n")
        return lines.first { $0.hasPrefix(key) }?.split(separator: ":").last?.trimmingCharacters(in: .whitespaces)
    }
}
