@file:Suppress("UNUSED_PARAMETER")

package org.pytorch.executorch

import java.io.Closeable
import java.nio.IntBuffer

private fun declared(): Nothing = error("ExecuTorch is not in this build; Gradle's has it")

abstract class Tensor internal constructor(shape: LongArray) {
    open val dataAsFloatArray: FloatArray get() = declared()

    companion object {
        @JvmStatic
        fun allocateIntBuffer(numElements: Int): IntBuffer = declared()

        /** @throws IllegalArgumentException the buffer is not direct, or has another capacity than the shape. */
        @JvmStatic
        fun fromBlob(data: IntBuffer, shape: LongArray): Tensor = declared()
    }
}

class EValue private constructor() {
    fun toTensor(): Tensor = declared()

    companion object {
        @JvmStatic
        fun from(tensor: Tensor): EValue = declared()
    }
}

class MethodMetadata internal constructor(val name: String, val backends: Array<String>)

open class Module private constructor() : Closeable {
    /** @throws IllegalStateException it was closed. */
    open fun execute(methodName: String, vararg inputs: EValue): Array<EValue> = declared()

    /** @throws RuntimeException it cannot be loaded; [execute] would load it. */
    open fun loadMethod(methodName: String): Unit = declared()

    /** @throws IllegalArgumentException there is no such method. */
    open fun getMethodMetadata(name: String): MethodMetadata = declared()

    /** @throws IllegalStateException a method runs in another thread. */
    override fun close() = declared()

    companion object {
        const val LOAD_MODE_FILE = 0
        const val LOAD_MODE_MMAP = 1

        /** @throws IllegalArgumentException there is no such file. */
        @JvmStatic
        @JvmOverloads
        fun load(modelPath: String?, loadMode: Int = LOAD_MODE_FILE, numThreads: Int = 0): Module = declared()
    }
}
